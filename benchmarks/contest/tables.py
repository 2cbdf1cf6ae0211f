"""What the contest found: tables as Markdown, and which aims are met.

    python -m benchmarks.contest.tables [FOLDER] [--pack]

--pack: first move the rows of a contest that is over into the Parquet files.
"""

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.contest import RECORDS
from benchmarks.contest.competitors import COMPETITORS
from benchmarks.contest.contest_records import (
    ContestFacts,
    ContestFile,
    ContestRow,
    pack,
    stored_facts,
)
from benchmarks.contest.domains import FIXED, FIXED_BUDGET
from benchmarks.contest.live_contest import FINALISTS, OWN, best_rows

DDP = "ddp"
FIXED_NAMES = frozenset(name for name, *_ in FIXED)
BY_NAME = {each.name: each for each in COMPETITORS}
LEVEL = 1.01
"""Answers less than 1 % apart are level: about the repeatability of a quiet trial."""
WIDE = 1.1
"""Times its limit that DDP takes where there is a gap to speak of; the share closed of a smaller
one is mostly noise."""


@dataclass(frozen=True, slots=True)
class FinalFigure:
    """A strategy in the interleaved repeats. key: of its rows, which one label may share with other
    strategies. step_seconds: the median; over_ddp and the two after it: DDP's seconds by its own in
    the same repeat, median, 10th and 90th percentile."""

    label: str
    key: str
    step_seconds: float
    over_ddp: float
    over_ddp_p10: float
    over_ddp_p90: float
    repeats: int


@dataclass(frozen=True, slots=True)
class ContestResult:
    """A domain whose finals were run. answers: by competitor and number of trials; AutoSync's
    stand under `autosync`. spent: trials of each competitor; of AutoSync those of its longest
    tuning. failed: what never ran, and why. passes: warm-up and measured iterations of trials, as
    words."""

    facts: ContestFacts
    ddp_seconds: float
    answers: Mapping[tuple[str, int], FinalFigure]
    failed: Mapping[str, str]
    launcher: str
    spent: Mapping[str, int]
    passes: str

    @property
    def budget(self) -> int:
        """The most trials of anybody who tunes."""
        return max(self.counts)

    @property
    def counts(self) -> list[int]:
        """After how many trials competitors are compared."""
        return sorted(count for name, count in self.answers if name == "autosync")

    def share_of_limit(self, trials: int) -> float:
        return self.facts.limit_seconds / self.answers["autosync", trials].step_seconds

    def gap_closed(self, trials: int) -> float:
        own = self.answers["autosync", trials].step_seconds
        return share_of_gap(self.ddp_seconds, own, self.facts.limit_seconds)

    def best_baseline(self, trials: int) -> tuple[str, FinalFigure]:
        """The fastest competitor that is not AutoSync."""
        others = {
            name: figure
            for (name, count), figure in self.answers.items()
            if count == trials and name != "autosync"
        }
        name = min(others, key=lambda each: others[each].step_seconds)
        return name, others[name]

    def over_baseline(self, trials: int) -> float:
        best = self.best_baseline(trials)[1]
        return best.step_seconds / self.answers["autosync", trials].step_seconds


def share_of_gap(ddp_seconds: float, own_seconds: float, limit_seconds: float) -> float:
    """Of what DDP takes beyond the limit, the share that the answer does without; NaN where DDP is
    within 1 % of the limit."""
    gap = ddp_seconds - limit_seconds
    if gap < (LEVEL - 1.0) * limit_seconds:
        return float("nan")
    return (ddp_seconds - own_seconds) / gap


def contest_results(folder: Path) -> list[ContestResult]:
    """Of every domain with finals of DDP and of AutoSync."""
    found = [result_of(ContestFile(folder, f.name), f) for f in stored_facts(folder)]
    return [each for each in found if each is not None]


def result_of(file: ContestFile, facts: ContestFacts) -> ContestResult | None:
    """None where the finals have not begun."""
    by_key = final_seconds(file.rows)
    ddp_rows = file.of("search", DDP)
    if not ddp_rows or ddp_rows[0].key not in by_key:
        return None
    ddp = by_key[ddp_rows[0].key]
    answers, failed, spent = {}, {}, {}
    budgets = [int(row.competitor.removeprefix(OWN)) for row in file.rows if OWN in row.competitor]
    for name in dict.fromkeys(row.competitor for row in file.rows if row.kind == "search"):
        rows = file.of("search", name)
        own = name.removeprefix(OWN)
        counts = [int(own)] if own != name else sorted(set(budgets))
        spent["autosync" if own != name else name] = len(rows)
        for count in counts:
            figures = [
                figure_of(row, by_key[row.key], ddp)
                for row in best_rows(rows, within(name, count))
                if row.key in by_key
            ]
            if figures:
                answer = min(figures, key=lambda each: each.step_seconds)
                answers["autosync" if own != name else name, count] = answer
        if not any(row.step_seconds for row in rows):
            failed[name] = rows[0].error
    if not any(name == "autosync" for name, _ in answers):
        return None
    launcher = next(row.launcher for row in file.rows if row.kind == "final")
    passes = passes_words(row for row in file.rows if row.step_seconds)
    seconds = float(np.median(list(ddp.values())))
    return ContestResult(facts, seconds, answers, failed, launcher, spent, passes)


def within(competitor: str, budget: int) -> int:
    """How many of its trials count."""
    known = BY_NAME.get(competitor)
    return known.trials_within(budget) if known else budget


def passes_words(rows: Iterable[ContestRow]) -> str:
    """Warm-up and measured iterations of trials."""
    found = sorted({(row.warmup, row.iterations) for row in rows if row.warmup is not None})
    return ", ".join(f"{warmup} + {measured}" for warmup, measured in found) or "not recorded"


def final_seconds(rows: Sequence[ContestRow]) -> dict[str, dict[int, float]]:
    """Seconds by repeat of each strategy in the finals; one that failed in a repeat lacks it."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.kind == "final" and row.step_seconds is not None:
            found.setdefault(row.key, {})[row.number] = row.step_seconds
    return found


def figure_of(row: ContestRow, own: Mapping[int, float], ddp: Mapping[int, float]) -> FinalFigure:
    both = sorted(own.keys() & ddp.keys())
    ratios = [ddp[repeat] / own[repeat] for repeat in both] or [float("nan")]
    low, middle, high = np.percentile(ratios, (10, 50, 90))
    seconds = float(np.median(list(own.values())))
    shares = float(middle), float(low), float(high)
    return FinalFigure(row.label, row.key, seconds, *shares, len(both))


def summary_table(results: Sequence[ContestResult]) -> str:
    """A line a domain and number of trials: AutoSync beside the limit, DDP and the best other."""
    lines = [
        "| domain | rho | limit, ms | DDP, ms | trials | AutoSync, ms | of the limit | gap closed "
        "| times DDP | over the best other |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        facts = each.facts
        for trials in each.counts:
            own = each.answers["autosync", trials]
            other = each.best_baseline(trials)[0]
            lines.append(
                f"| {facts.name} | {facts.rho:g} | {facts.limit_seconds * 1e3:.1f} "
                f"({facts.limit_tightest}) | {each.ddp_seconds * 1e3:.1f} | {trials} "
                f"| {own.step_seconds * 1e3:.1f} (`{own.label}`) "
                f"| {percent(each.share_of_limit(trials))} | {percent(each.gap_closed(trials))} "
                f"| {own.over_ddp:.2f} ({own.over_ddp_p10:.2f} to {own.over_ddp_p90:.2f}) "
                f"| {each.over_baseline(trials):.2f} (`{other}`) |"
            )
    return "\n".join(lines)


def percent(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.0%}"


def competitors_table(results: Sequence[ContestResult]) -> str:
    """A line a domain, a column a competitor, after all its trials: ms, share of the limit, trials
    spent."""
    ran = [name for each in results for name, count in each.answers if count == each.budget]
    names = list(dict.fromkeys([*ran, *(name for each in results for name in each.failed)]))
    lines = [f"| domain | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    for each in results:
        cells = []
        for name in names:
            figure = each.answers.get((name, each.budget))
            if figure is None:
                cells.append("failed" if name in each.failed else "–")
            else:
                share = each.facts.limit_seconds / figure.step_seconds
                spent = f"{each.spent[name]} trial{'s' if each.spent[name] > 1 else ''}"
                cells.append(f"{figure.step_seconds * 1e3:.1f}, {share:.0%}, {spent}")
        lines.append(f"| {each.facts.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def domains_table(results: Sequence[ContestResult]) -> str:
    """What each domain's figures depend on."""
    lines = [
        "| domain | compute, ms | ring, ms | rho | s | k | warm-up + iterations | measured on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        facts = each.facts
        lines.append(
            f"| {facts.name} | {facts.compute_seconds * 1e3:.1f} | {facts.ring_seconds * 1e3:.1f} "
            f"| {facts.rho:.3g} | {facts.byte_scale:g} | {facts.time_scale:g} "
            f"| {each.passes} | {each.launcher}; {facts.provenance} |"
        )
    failures = [
        f"- {each.facts.name}, `{name}` did not run: {why}"
        for each in results
        for name, why in each.failed.items()
    ]
    return "\n".join([*lines, "", *failures]).rstrip()


def aims(results: Sequence[ContestResult]) -> list[tuple[str, bool, str]]:
    """Each aim, whether it is met, and the figures that say so."""

    def each_of(figure: Mapping[str, float], least: float) -> tuple[bool, str]:
        below = {name: value for name, value in figure.items() if value < least}
        words = ", ".join(f"{name} {value:.2f}" for name, value in below.items())
        return not below, f"below: {words}" if below else f"{len(figure)} of {len(figure)}"

    found: list[tuple[str, bool, str]] = []

    def mean(aim: str, values: Sequence[float], least: float) -> None:
        known = [value for value in values if not np.isnan(value)]
        if not known:
            return
        value = float(np.mean(known))
        found.append((aim, value >= least, f"{value:.0%} over {len(known)} domains"))

    shares = {each.facts.name: each.share_of_limit(each.budget) for each in results}
    mean("96 % of the limit on average", list(shares.values()), 0.96)
    mean(
        "85 % of the gap closed on average",
        [each.gap_closed(each.budget) for each in results],
        0.85,
    )
    wide = [
        e.gap_closed(e.budget) for e in results if e.ddp_seconds >= WIDE * e.facts.limit_seconds
    ]
    mean("85 % of the gap where DDP is a tenth beyond the limit", wide, 0.85)
    found.append(("no domain below 90 % of the limit", *each_of(shares, 0.90)))
    short = [each for each in results if ("autosync", 12) in each.answers]
    mean("93 % of the limit on average in 12 trials", [e.share_of_limit(12) for e in short], 0.93)
    room = {
        each.facts.name: each.answers["autosync", each.budget].over_ddp
        for each in results
        if each.ddp_seconds / each.facts.limit_seconds >= 1.8
    }
    found.append(("1.6 times DDP where the limit allows 1.8", *each_of(room, 1.6)))
    worst = {
        each.facts.name: each.answers["autosync", each.budget].over_ddp_p90 for each in results
    }
    found.append(("no answer significantly slower than DDP", *each_of(worst, 1.0)))
    allowed = {
        each.facts.name: each.over_baseline(each.budget)
        for each in results
        if each.best_baseline(each.budget)[1].step_seconds / each.facts.limit_seconds >= 1.1
    }
    found.append(("1.1 times the best other where the limit allows it", *each_of(allowed, 1.1)))
    early = {
        each.facts.name: each.answers["autosync", each.budget].step_seconds
        / each.answers["autosync", 20].step_seconds
        for each in results
        if ("autosync", 20) in each.answers
    }
    found.append(("within 1 % of the final answer by 20 trials", *each_of(early, 1 / LEVEL)))
    return found


def fixed_aims(results: Sequence[ContestResult]) -> list[tuple[str, bool, str]]:
    """Those of the domains fixed in advance (`domains.FIXED`), after the trials that each names."""
    room = {
        each.facts.name: each.over_baseline(each.budget)
        for each in results
        if each.best_baseline(each.budget)[1].step_seconds / each.facts.limit_seconds >= 1.15
    }
    slower = {
        each.facts.name: each.answers["autosync", each.budget].over_ddp
        for each in results
        if each.answers["autosync", each.budget].over_ddp < 1.0
    }
    shares = [each.share_of_limit(each.budget) for each in results]
    mean = float(np.mean(shares)) if shares else float("nan")
    return [
        (
            "1.10 times the best other where the limit allows 1.15",
            all(value >= 1.10 for value in room.values()),
            ", ".join(f"{name} {value:.2f}" for name, value in room.items()) or "nowhere",
        ),
        ("never slower than DDP", not slower, ", ".join(slower) or f"{len(results)} domains"),
        (
            f"95 % of the limit on average in {FIXED_BUDGET} trials",
            mean >= 0.95,
            f"{mean:.0%} over {len(shares)} domains",
        ),
    ]


def aims_table(found: Sequence[tuple[str, bool, str]]) -> str:
    lines = ["| aim | | |", "|---|---|---|"]
    for aim, met, words in found:
        lines.append(f"| {aim} | {'met' if met else '**missed**'} | {words} |")
    return "\n".join(lines)


def finals_words(results: Sequence[ContestResult]) -> str:
    repeats = min((each.repeats for e in results for each in e.answers.values()), default=0)
    return (
        f"Medians of at least {repeats} interleaved repeats of the {FINALISTS} best of each "
        "competitor after so many trials; of these the faster one counts. `times DDP` is paired by "
        "repeat, with its 10th and 90th percentile."
    )


def contest_tables(folder: Path) -> str:
    """All tables of the contest whose records the folder holds, as Markdown."""
    results = contest_results(folder)
    parts = [unfinished_table(folder, {each.facts.name for each in results})]
    if results:
        fixed = {each.facts.name for each in results} <= FIXED_NAMES
        parts = [
            finals_words(results),
            summary_table(results),
            competitors_table(results),
            aims_table(fixed_aims(results) if fixed else aims(results)),
            domains_table(results),
            *parts,
        ]
    return "\n\n".join(filter(None, parts)) or f"{folder} holds no records of a contest"


def unfinished_table(folder: Path, finished: Collection[str]) -> str:
    """Domains that were begun and have no finals, from which nothing follows."""
    lines = []
    for facts in stored_facts(folder):
        if facts.name in finished:
            continue
        best: dict[str, list[float]] = {}
        for row in ContestFile(folder, facts.name).rows:
            if row.step_seconds and row.kind == "search":
                best.setdefault(row.competitor, []).append(row.step_seconds)
        tried = "; ".join(
            f"`{name}` {min(seconds) * 1e3:.1f} ({len(seconds)})" for name, seconds in best.items()
        )
        lines.append(
            f"| {facts.name} | {facts.limit_seconds * 1e3:.1f} | {tried} | {facts.provenance} |"
        )
    head = "| begun only | limit, ms | best trial, ms (trials) | machine |\n|---|---|---|---|"
    return "\n".join([head, *lines]) if lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=RECORDS)
    parser.add_argument("--pack", action="store_true")
    given = parser.parse_args()
    if given.pack:
        pack(given.folder)
    print(contest_tables(given.folder))


if __name__ == "__main__":
    main()
