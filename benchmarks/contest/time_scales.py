"""Which part of the distance to the limit is due to the testbed: the contest at slower scales.

    python -m benchmarks.contest.time_scales [--domains resnet50-4x1 ...] [--slower 1 2 4]
        [--repeats 5] [-o FOLDER]

On a testbed several ranks share this machine's cores. What they compute themselves (copies, sums,
hooks, updates) is charged to the iteration, and counts k times less at a time scale of k; bytes,
links and profiled compute count the same. So the contest's answer of a domain, the best other
competitor and torch's DDP run again at its k times 1, 2 and 4, in interleaved repeats. Time that
does not shrink with k is due to the schedule and its bytes; time that does is due to shared cores.

Leave the machine alone meanwhile. What was measured is in FOLDER and is not measured again.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.loop.settings import Settings
from autosync.strategy import Strategy
from autosync.trials.contract import Pool, TrialRequest, Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_records import (
    ContestFacts,
    ContestFile,
    ScaleRow,
    facts_of,
    scale_rows,
    stored_facts,
    stored_strategies,
)
from benchmarks.contest.contestants import BASELINES, PLAN, Contestant
from benchmarks.contest.domains import DOMAINS, domain_named
from benchmarks.contest.live_contest import contestant_of
from benchmarks.contest.tables import BY_NAME, DDP, percent, result_of, share_of_gap
from benchmarks.measure import provenance
from benchmarks.output import in_turn, option_parser

SLOWER = (1.0, 2.0, 4.0)
"""Times a domain's own time scale."""
REPEATS = 5
AUTOSYNC = "autosync"


def racers(folder: Path, given: CollectionTarget, domain: Domain) -> dict[str, Contestant]:
    """Who runs, by role: after the most trials. Empty where there are no finals, or where the
    answer's strategy was not kept."""
    file, facts = ContestFile(folder, given.name), facts_of(folder, given.name)
    result = result_of(file, facts) if facts else None
    if result is None:
        return {}
    own = result.answers[AUTOSYNC, result.budget]
    answer = next(row for row in file.rows if row.kind == "search" and row.key == own.key)
    strategies = {each.id: each for each in all_strategies(folder, given, domain, file)}
    if answer.strategy_id not in strategies:
        return {}
    found = {
        DDP: contestant_of(BY_NAME[DDP], domain, 0.0),
        AUTOSYNC: Contestant(own.label, PLAN, strategies[answer.strategy_id]),
    }
    other, figure = result.best_baseline(result.budget)
    if other != DDP:
        best = next(row for row in file.of("search", other) if row.key == figure.key)
        found[other] = contestant_of(BY_NAME[other], domain, best.size_mib)
    return found


def all_strategies(
    folder: Path, given: CollectionTarget, domain: Domain, file: ContestFile
) -> list[Strategy]:
    """What AutoSync's tunings brought to the finals, and what competitors build of the sizes that
    they tried."""
    ended = {row.key for row in file.rows if row.kind == "final"}
    return list(stored_strategies(folder, given.name).values()) + [
        BY_NAME[row.competitor].build(domain, row.size_mib)
        for row in file.rows
        if row.kind == "search" and row.competitor in BY_NAME and row.key in ended
    ]


def measure(
    folder: Path, given: CollectionTarget, slower: Sequence[float], repeats: int
) -> list[ScaleRow]:
    """What is missing of a domain is measured; returns all of it.

    Raises:
        AutosyncError: there are no finals of the domain, its answer was not kept, or another one
            was measured before.
    """
    facts = facts_of(folder, given.name)
    domain = facts.domain if facts else None
    line = racers(folder, given, domain) if domain else {}
    if domain is None or not line:
        raise AutosyncError(
            "the live contest has no answer of this domain whose strategy was kept.",
            thing="domain",
            value=given.name,
            remedy=f"python -m benchmarks.contest.live_contest --domains {given.name}",
        )
    check_same_answers(folder, given.name, line)
    byte_scale, own_scale = given.scales
    launcher = TestbedLauncher(workloads=(BASELINES,))
    for time_scale in (own_scale * factor for factor in slower):
        done = {
            (r.role, r.repeat)
            for r in scale_rows(folder).read(given.name)
            if r.time_scale == time_scale
        }
        if len(done) >= len(line) * repeats:
            continue
        workload = Workload(domain, "baselines", byte_scale, time_scale)
        with launcher.open(workload) as pool:
            for repeat in range(repeats):
                for role in in_turn(list(line), repeat):
                    if (role, repeat) not in done:
                        row = run_one(pool, given, domain, role, line[role], time_scale, repeat)
                        scale_rows(folder).add(given.name, row)
                print(f"{given.name}: k = {time_scale:g}, repeat {repeat + 1}", flush=True)
    return scale_rows(folder).read(given.name)


def check_same_answers(folder: Path, name: str, line: Mapping[str, Contestant]) -> None:
    """
    Raises:
        AutosyncError: what was measured before is of other strategies than those that run.
    """
    for row in scale_rows(folder).read(name):
        runs = line.get(row.role)
        if (
            runs is None
            or row.label != runs.label
            or row.strategy_id not in (None, runs.strategy.id)
        ):
            raise AutosyncError(
                f"what stands in {folder} was measured of another answer, {row.label!r} of "
                f"{row.role!r}.",
                thing="domain",
                value=name,
                remedy=f"Remove its rows from scales.parquet and scales in {folder}, and measure "
                "all of them again.",
            )


def run_one(
    pool: Pool,
    given: CollectionTarget,
    domain: Domain,
    role: str,
    contestant: Contestant,
    time_scale: float,
    repeat: int,
) -> ScaleRow:
    result = pool.run(
        TrialRequest(
            f"{contestant.mode}/scale/{role}/{time_scale}/{repeat}",
            make_bundle(contestant.strategy, domain),
            warmup=given.warmup,
            iterations=given.iterations,
            timeout_seconds=Settings().timeout_seconds,
        )
    )
    where = ", ".join(f"{name} {value}" for name, value in provenance().items())
    seconds = result.step_seconds
    own = contestant.strategy.id
    return ScaleRow(
        role, contestant.label, time_scale, repeat, seconds, result.launcher, where, own
    )


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """A domain at one time scale. seconds: of each role's trials."""

    facts: ContestFacts
    time_scale: float
    seconds: dict[str, list[float]]

    @property
    def slower(self) -> float:
        """Times the domain's own time scale."""
        return self.time_scale / self.facts.time_scale

    @property
    def share_of_limit(self) -> float:
        return self.facts.limit_seconds / float(np.median(self.seconds[AUTOSYNC]))


def scale_results(folder: Path) -> list[ScaleResult]:
    """Where both AutoSync's answer and DDP ran, by domain, then by time scale."""
    found = []
    for facts in stored_facts(folder):
        at: dict[float, dict[str, list[float]]] = {}
        for row in scale_rows(folder).read(facts.name):
            if row.step_seconds:
                at.setdefault(row.time_scale, {}).setdefault(row.role, []).append(row.step_seconds)
        found += [ScaleResult(facts, time_scale, at[time_scale]) for time_scale in sorted(at)]
    return [each for each in found if {DDP, AUTOSYNC} <= each.seconds.keys()]


def scales_table(results: Sequence[ScaleResult]) -> str:
    """A line a domain and time scale: medians and shares of the limit."""
    lines = [
        "| domain | k | repeats | DDP, ms | best other, ms | AutoSync, ms (10th to 90th) "
        "| of the limit | gap closed | times DDP |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, results)])


def average_words(results: Sequence[ScaleResult]) -> str:
    """The mean share of the limit at each multiple of the domains' own time scales, and which
    domains are not in it; empty without any."""
    everywhere = dict.fromkeys(each.facts.name for each in results)
    parts = []
    for slower in sorted({each.slower for each in results}):
        shares = {e.facts.name: e.share_of_limit for e in results if e.slower == slower}
        at = "at their own k" if slower == 1.0 else f"{slower:g} times slower"
        missing = ", ".join(name for name in everywhere if name not in shares)
        without = f" (without {missing})" if missing else ""
        parts.append(f"{np.mean(list(shares.values())):.0%} {at}{without}")
    return f"Of the limit, on average over domains: {'; '.join(parts)}." if parts else ""


def parting_table(results: Sequence[ScaleResult]) -> str:
    """What each answer takes beyond its limit, fitted over time scales as what stays and what
    counts k times less; neither below zero. Domains of a single time scale are left out."""
    lines = [
        "| domain | beyond the limit at its own k | stays at any k | of shared cores |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(each.facts.name for each in results):
        own = [each for each in results if each.facts.name == name]
        if len(own) < 2:
            continue
        slower = np.array([each.slower for each in own])
        beyond = np.array([1 / each.share_of_limit - 1 for each in own])
        (stays, shared), _ = nnls(np.stack([np.ones_like(slower), 1 / slower], axis=1), beyond)
        first = f"{beyond[slower == 1.0].mean():.0%}" if 1.0 in slower else ""
        lines.append(f"| {name} | {first} | {stays:.0%} | {shared:.0%} |")
    return "\n".join(lines)


def _line(each: ScaleResult) -> str:
    median = {role: float(np.median(seconds)) for role, seconds in each.seconds.items()}
    own, ddp, limit = median[AUTOSYNC], median[DDP], each.facts.limit_seconds
    low, high = np.percentile(each.seconds[AUTOSYNC], (10, 90))
    others = [role for role in median if role not in (DDP, AUTOSYNC)]
    other = f"{median[others[0]] * 1e3:.1f} (`{others[0]}`)" if others else "DDP"
    return (
        f"| {each.facts.name} | {each.time_scale:g} | {len(each.seconds[AUTOSYNC])} "
        f"| {ddp * 1e3:.1f} | {other} "
        f"| {own * 1e3:.1f} ({low * 1e3:.1f} to {high * 1e3:.1f}) | {each.share_of_limit:.0%} "
        f"| {percent(share_of_gap(ddp, own, limit))} | {ddp / own:.2f} |"
    )


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--domains", nargs="+", default=[d.name for d in DOMAINS], metavar="NAME")
    parser.add_argument("--slower", nargs="+", type=float, default=list(SLOWER), metavar="TIMES")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    for chosen in (domain_named(name, given.out) for name in given.domains):
        try:
            measure(given.out, chosen, given.slower, given.repeats)
        except AutosyncError as error:
            print(f"{chosen.name}: {error}", file=sys.stderr, flush=True)
    results = scale_results(given.out)
    print(scales_table(results))
    print(average_words(results))
    print(parting_table(results))


if __name__ == "__main__":
    main()
