"""Writes docs/contest.md and its pictures from the contest's records.

    python -m benchmarks.contest.contest_page [-o FOLDER] [--page docs/contest.md]

Sections whose records FOLDER does not hold stay as they are on the page; what was never run says
so.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from autosync.bundled_data import data_folder
from autosync.simulator.runtime_dataset import load_dataset
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_words import (
    LEFTOVER_WORDS,
    LIVE_WORDS,
    ONE_CORE_A_RANK,
    ONE_CORE_WORDS,
    PARTING_WORDS,
    REPLAYED_WORDS,
    SCALES_WORDS,
    SLOWER_CORES,
    SLOWER_CORES_WORDS,
)
from benchmarks.contest.iteration_accounts import accounts_table
from benchmarks.contest.leftover import read_accounts
from benchmarks.contest.live_tables import (
    aims_table,
    competitors_table,
    contest_results,
    domains_table,
    finals_words,
    summary_table,
)
from benchmarks.contest.replayed_contest import read_searches
from benchmarks.contest.replayed_tables import (
    designs_table,
    domains_of,
    draw_best_so_far,
    draw_improvement,
    regret_table,
    statistics_table,
    unfinished,
    without_designs_table,
)
from benchmarks.contest.time_scales import (
    average_words,
    parting_table,
    scale_results,
    scales_table,
)

PAGE = Path("docs/contest.md")
PICTURES = "pictures"

HEAD = """# The contest

AutoSync's search beside its own ablations, replayed on measured strategies, and beside tuned
baselines, live on emulated clusters. `python -m benchmarks.contest.contest_page` writes this page
from the [records](../benchmarks/contest/records) of the commands that each section names; all of
them go on where they stopped."""

REPLAYED = "Replayed: ablations"
LIVE = "Live: tuned baselines"
LEFTOVER = "What the runtime leaves on the table"
SCALES = "What of it is the testbed's own"
ONE_CORE = "With one core a rank"
SLOWER = "On slower cores"


def replayed_section(folder: Path, page: Path) -> str | None:
    searches = read_searches(folder)
    if not searches:
        return None
    pictures = page.parent / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    draw_improvement(searches, pictures / "contest_improvement.svg")
    draw_best_so_far(searches, pictures / "contest_best_so_far.svg")
    parts = [
        REPLAYED_WORDS,
        "By how much the answer is slower than the fastest that could be tried, means over "
        f"{len(domains_of(searches))} domains and {len({e.seed for e in searches})} seeds, without "
        "hand-designed strategies; the hit rate is of 60 trials.",
        regret_table(searches),
        "At the end of tunings of each budget, with hand-designed strategies (DDP and the most "
        "promising first, others where they [earn their trial](search.md)) and without, beside the "
        "fastest of the whole pool:",
        designs_table(searches),
        "What 60 trials answer without any hand-designed strategy, beside the fastest of those:",
        without_designs_table(searches, measured_pools()),
        f"![](./{PICTURES}/contest_improvement.svg)",
        "The best found, as times the fastest baseline, and the hit rate (the form of the thesis' "
        "figure 8.2).",
        f"![](./{PICTURES}/contest_best_so_far.svg)",
        "The best so far, over the fastest that could be tried (figure 8.3).",
        "### All strategies that a search tried",
        "The form of the thesis' table 8.2: seconds of the strategies, 60 trials a seed.",
    ]
    for domain in domains_of(searches):
        parts += [f"**{domain}**", statistics_table(searches, domain)]
    if missing := unfinished(searches):
        parts.append(f"Not played, or not everywhere: {missing}.")
    return "\n\n".join(parts)


def measured_pools() -> dict[str, tuple[int, float]]:
    """Of every measured domain, how many strategies, and the seconds of its fastest design."""
    return {
        each.name: (len(each), float(each.label_seconds[each.designs].min()))
        for each in load_dataset(data_folder("runtimes"))
    }


def live_section(folder: Path, page: Path) -> str | None:
    results = contest_results(folder)
    if not results:
        return None
    return "\n\n".join(
        (
            LIVE_WORDS,
            finals_words(results),
            summary_table(results),
            "After 60 trials, ms and share of the limit:",
            competitors_table(results),
            "### Aims",
            aims_table(results),
            "### Domains",
            domains_table(results),
        )
    )


def leftover_section(folder: Path, page: Path) -> str | None:
    found = read_accounts(folder)
    if not found:
        return None
    return f"{LEFTOVER_WORDS}\n\n{accounts_table(found)}"


def scales_section(folder: Path, page: Path) -> str | None:
    results = scale_results(folder)
    if not results:
        return None
    parts = SCALES_WORDS, scales_table(results), average_words(results)
    return "\n\n".join((*parts, PARTING_WORDS, parting_table(results)))


def section_beside(beside: str, words: str) -> Callable[[Path, Path], str | None]:
    """Domains that were measured again elsewhere. beside: a folder of records in the contest's."""

    def section(folder: Path, page: Path) -> str | None:
        folder = folder / beside
        results = contest_results(folder)
        if not results:
            return None
        parts = [words, summary_table(results), competitors_table(results)]
        if accounts := read_accounts(folder):
            parts += ["Recorded, as [above](#what-the-runtime-leaves-on-the-table):"]
            parts += [accounts_table(accounts)]
        if scales := scale_results(folder):
            parts += ["At slower time scales, and parted, as above:"]
            parts += [scales_table(scales), parting_table(scales)]
        return "\n\n".join((*parts, domains_table(results)))

    return section


SECTIONS: dict[str, Callable[[Path, Path], str | None]] = {
    REPLAYED: replayed_section,
    LIVE: live_section,
    LEFTOVER: leftover_section,
    SCALES: scales_section,
    ONE_CORE: section_beside(ONE_CORE_A_RANK, ONE_CORE_WORDS),
    SLOWER: section_beside(SLOWER_CORES, SLOWER_CORES_WORDS),
}
UNKNOWN = {
    REPLAYED: "Not played yet: `python -m benchmarks.contest.replayed_contest`.",
    LIVE: "Not measured yet: `python -m benchmarks.contest.live_contest` on a quiet machine.",
    LEFTOVER: "Not measured yet: `python -m benchmarks.contest.leftover`, after the live contest.",
    SCALES: "Not measured yet: `python -m benchmarks.contest.time_scales`, after the live contest.",
    ONE_CORE: "Not measured yet: `python -m benchmarks.contest.live_contest --time-scale 2 -o "
    f"benchmarks/contest/records/{ONE_CORE_A_RANK}`, where four ranks share two cores.",
    SLOWER: "Not measured yet: `python -m benchmarks.contest.live_contest -o "
    f"benchmarks/contest/records/{SLOWER_CORES}` on a machine of another kind.",
}


def sections_of(text: str) -> dict[str, str]:
    """What stands under each title of a page."""
    found = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {title: body.strip() for title, _, body in found}


def write_page(folder: Path, page: Path) -> None:
    known = sections_of(page.read_text()) if page.is_file() else {}
    parts = [HEAD]
    for title, section in SECTIONS.items():
        text = section(folder, page) or known.get(title) or UNKNOWN[title]
        parts.append(f"## {title}\n\n{text}")
    page.write_text("\n\n".join(parts) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    given = parser.parse_args()
    write_page(given.out, given.page)


if __name__ == "__main__":
    main()
