"""Writes docs/contest.md and its pictures from the contest's records.

    python -m benchmarks.contest.contest_page [-o FOLDER] [--page docs/contest.md]

Sections whose records FOLDER does not hold stay as they are on the page; what was never run says
so.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from autosync.bundled_data import data_folder
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.simulator.evaluation.measured_dataset import load_dataset
from benchmarks.contest import RECORDS
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


REPLAYED_WORDS = f"""`python -m benchmarks.contest.replayed_contest`: a search tries 60 of a
domain's [measured strategies](../datasets/runtimes) in rounds of {ROUND_TRIALS} and refits after
each. A seed leaves it nine tenths of the pool and one of two passes as a trial's seconds; the
answer is, by its best estimate, the fastest of the three that were fastest in their trials, as a
confirmation finds it. Selection and acquisition are the defaults of a tuning.

- `no simulator` takes what is least alike (AutoSync -s), `random` anything. `analytic` and
  `timeline` do not learn.
- `transferred` has learned from the domains of other models alone; the others begin with the
  timeline.
- `genetic` breeds from what it has tried; its children were not measured, so the measured strategy
  most like each stands in. What it would find among unmeasured ones, no pool can say.
- Without both constraints (AutoSync -s -k) nothing can be replayed: every drawn strategy of the
  pools keeps them. What the timeline predicts of such draws stands in
  [Proposals](proposals.md#what-the-timeline-predicts-of-them); `live_contest --competitors drawn
  drawn_unconstrained` measures them.
- The baseline of hit rates is the fastest of `ps_load_balanced`, `horovod` and torch's DDP.
- A pool holds what was worth measuring: random draws, designs, and picks of earlier searches.
  Nothing here is faster than its fastest strategy."""


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


LIVE_WORDS = """`python -m benchmarks.contest.live_contest`: everyone tries up to 60
settings on the same workers of one emulated cluster. AutoSync tunes three times, with 12, 20 and
60 trials, as `autosync tune` does, but its simulator has learned from the [bundled
measurements](../datasets/runtimes) of other models alone. The others: torch's DDP with Optuna over
`bucket_cap_mb`, DeAR with Bayesian optimization of its buffer, partitioned servers balanced by
bandwidth with Bayesian optimization of the partition, the same of BytePS, which balances its own
way and returns gradients (in the domains that were searched since it is here), and torch's DDP,
ZeroRedundancyOptimizer and FSDP2 as they come. Every byte threshold is scaled by s. rho is a ring
all-reduce at line rate over compute; NCF's counts its embedding tables whole, of which an iteration
sends the rows that it touched, so that little is left to gain there. The [limit](simulator.md) is a
lower bound for any allowed strategy.

AutoSync's searches are of 2026-11-25, most of the others' one or two days older, on a machine of
the same kind. The repeats, which alone count, are of one hour in each domain, of two in VGG-16 (20
repeats). On the uneven cluster everything is of the evening of that day, since testbeds keep
[queues short](trials.md#where): 117.9 ms before (89.9 %), and 140.0 (`dear_bo`). There a fast
node's windows were longer still than a slow one's ([equal ones](#on-slower-cores) cost 0 to 2 ms).
The other domains are of before; their links are all alike, and strategies measured in turn changed
by less than 1 %. On cores that are two to three times as slow answers take 6 to 8 % more
([below](#on-slower-cores)).

Hours differ, and not all competitors feel them alike: four ranks that copy and add on two cores
feel another load on the processor's host, DDP waits for its links. A third hour later VGG-16's
answer took 63.1 ms ([at its own k](#what-of-it-is-the-testbeds-own)). The search before those
rules (this page's history) had 184.5 ms on BERT, 122.0 on ResNet-50 and 61.8 on VGG-16."""


def leftover_section(folder: Path, page: Path) -> str | None:
    found = read_accounts(folder)
    if not found:
        return None
    return f"{LEFTOVER_WORDS}\n\n{accounts_table(found)}"


LEFTOVER_WORDS = """`python -m benchmarks.contest.leftover`: the best strategy of each domain,
recorded; ms of the iteration of median length. On the slowest rank the iteration is its profiled
compute, compute beyond that, updates and waits. On the busiest link it is bytes at line rate,
startups and what links and processors share while messages are under way, and the rest, in which
nothing is under way: because a second half is held whose first half has arrived, because a
gradient waits for others of its message, because a message is sent late, or because there is
nothing to send. Recording costs some time itself.

- NCF: what is beyond the limit is compute, which every strategy takes, torch's DDP too. There is
  nothing to close, and its share of the gap closed is noise.
- ResNet-50 on uneven links: what was beyond the limit was the testbed's queues more than anything
  (9.9 ms before they were [kept short](trials.md#where), 7.2 now). Refinements that mix all-reduces
  with pushes and pulls took a quarter longer than predicted, since each hop of a small ring stood
  in a queue of 50 ms behind whole messages of others; now such mixtures measure as predicted (1.00
  of it, the median of 30; `benchmarks.contest.tuning_sources`) and lead. At slower time scales the
  answer comes to 97 % of the limit (see below).
- VGG-16: four ranks copy and rebuild factors on two cores; the link is idle most of the time. At
  slower time scales the answer comes to 97 % of the limit (see below).
- BERT-base: the compute of four ranks takes 12 ms beyond its profile, on two cores that send 201
  messages; most of it is hidden behind messages. The same answer took 181.7 ms in the contest's
  repeats, 176.4 when it was recorded and 185.0 in a third hour. At slower time scales: 99 %."""


def scales_section(folder: Path, page: Path) -> str | None:
    results = scale_results(folder)
    if not results:
        return None
    parts = SCALES_WORDS, scales_table(results), average_words(results)
    return "\n\n".join((*parts, PARTING_WORDS, parting_table(results)))


SCALES_WORDS = """`python -m benchmarks.contest.time_scales`: on a testbed several ranks share this
machine's cores. What they compute themselves (copies, sums, hooks, updates) is charged to the
iteration, and counts k times less at a time scale of k; bytes, links and profiled compute count
the same at any. The answers after 60 trials, the best other competitor and DDP run again at each
domain's own k (its first line), twice and four times slower, in interleaved repeats: what a
strategy loses to its schedule stays, what it loses to shared cores goes."""

PARTING_WORDS = """What each answer takes beyond its limit, as a share of the limit, fitted over
these scales as a + b / k (neither below zero): a is left of the schedule and the links, b is what
two cores take that four ranks share, stated at the domain's own k."""

SLOWER_CORES = "slower_cores"
"""A folder of records beside the contest's own."""


def slower_cores_section(folder: Path, page: Path) -> str | None:
    folder = folder / SLOWER_CORES
    results = contest_results(folder)
    if not results:
        return None
    parts = [SLOWER_CORES_WORDS, summary_table(results), competitors_table(results)]
    if accounts := read_accounts(folder):
        parts += ["Recorded, as [above](#what-the-runtime-leaves-on-the-table):"]
        parts += [accounts_table(accounts)]
    if scales := scale_results(folder):
        parts += ["At slower time scales, and parted, as above:"]
        parts += [scales_table(scales), parting_table(scales)]
    return "\n\n".join((*parts, domains_table(results)))


SLOWER_CORES_WORDS = f"""`python -m benchmarks.contest.live_contest --domains vgg16-4x1
resnet50-uneven -o benchmarks/contest/records/{SLOWER_CORES}`: two domains again, everyone anew, in
one evening on a machine of another kind, whose cores take two to three times as long for what
ranks do themselves (VGG-16's updates 3.1 ms where they took 1.1). DDP, which waits for its links,
takes what it took; answers do not. It is not the search: the three strategies that took 113 to
114 ms before take 125 to 127 on this machine, as long as what was found here. Both ends of a pair
have equal windows since ([the testbed](trials.md#where)), which costs these six strategies 0 to
2 ms in turn, where full queues cost 2 to 13. What stays at any time scale is as little as on the
other machine: 0 and 2 % of the limit."""


SECTIONS: dict[str, Callable[[Path, Path], str | None]] = {
    REPLAYED: replayed_section,
    LIVE: live_section,
    LEFTOVER: leftover_section,
    SCALES: scales_section,
    SLOWER: slower_cores_section,
}
UNKNOWN = {
    REPLAYED: "Not played yet: `python -m benchmarks.contest.replayed_contest`.",
    LIVE: "Not measured yet: `python -m benchmarks.contest.live_contest` on a quiet machine.",
    LEFTOVER: "Not measured yet: `python -m benchmarks.contest.leftover`, after the live contest.",
    SCALES: "Not measured yet: `python -m benchmarks.contest.time_scales`, after the live contest.",
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
