"""AutoSync beside tuned baselines on emulated clusters, 60 trials each, in one run.

    python -m benchmarks.contest.live_contest [--domains resnet50-4x1 ...] [--minutes 240]
        [--trials 60] [--repeats 10] [--competitors ddp dear_bo ...] [-o FOLDER]
        [--budgets 12 20 60] [--time-scale K]
    python -m benchmarks.contest.live_contest --fixed [--minutes 240]

Leave the machine alone meanwhile. Of each domain (`domains`) the links are probed once, as
`autosync tune` does; then every competitor tries its settings on the same workers, and AutoSync
tunes three times, with 12, 20 and 60 trials, since a tuning divides its budget. The two best of
each after 12, 20 and 60 trials run again in interleaved repeats; the figures are these alone.

--fixed plays the five domains on which no setting was chosen (`domains.FIXED`) in a folder of their
own, where everybody has 24 trials and the finals 6 repeats.

Every trial is a line in a file of FOLDER (by default benchmarks/contest/records), and is not run
again: after --minutes, Ctrl-C or a crash the same command goes on. benchmarks.contest.tables prints
the page.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autosync.documents import to_json
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.cluster_probe import probe_costs
from autosync.search.collect.collection_plan import CollectionTarget, domain_of, ring_seconds
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import Phase
from autosync.search.space import Space
from autosync.simulator.limit import iteration_limit
from autosync.trials.contract import Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.scales import CORES_A_RANK
from benchmarks.contest import FIXED_RECORDS, RECORDS
from benchmarks.contest.competitors import COMPETITORS, Competitor, TriedSetting
from benchmarks.contest.contest_records import (
    ContestFacts,
    ContestFile,
    ContestRow,
    FileStore,
    domain_facts,
    facts_of,
    store_strategies,
    stored_strategies,
)
from benchmarks.contest.contestants import (
    BASELINES,
    COUNTS,
    PLAN,
    BorrowedPool,
    Contestant,
    ContestSettings,
    OutOfTime,
    Ring,
    in_ms,
    row_of,
)
from benchmarks.contest.domains import DOMAINS, FIXED, FIXED_BUDGET, FIXED_REPEATS, domain_named
from benchmarks.contest.unseen_simulator import unseen_simulator
from benchmarks.measure import provenance

FINALISTS = 2
"""Of a competitor after so many trials, that run again in the repeats."""


OWN = "autosync_"
"""What AutoSync's competitors' names begin with; the number of trials follows."""


def tune_with(ring: Ring, budget: int) -> None:
    """A tuning of so many trials, without its confirmation: the finals take its place."""
    name = tuning_name(budget)
    store, recorded = tuning_store(ring, budget), len(ring.file.of("search", name))
    if recorded and recorded == len(store.trials()):
        return
    settings = replace(
        ring.settings.search,
        budget=budget,
        warmup=ring.given.warmup,
        iterations=ring.given.iterations,
        probe=False,  # the domain brings its costs
    )

    def stop(phase: Phase) -> bool:
        ring.settings.check_time()
        return phase == "confirm"

    def on_event(event: TuningEvent) -> None:
        if event.kind == "search":
            best = in_ms(event.best_seconds)
            ring.say(f"{name} {event.done} of {event.total}: {event.message}, best {best}")

    pool = BorrowedPool(ring.pool, name)
    tune(ring.domain, Space(), lambda: pool, store, ring.simulator(), settings, on_event, stop)
    origins = {each.key: each.candidate for each in store.proposals()}
    for number, trial in list(enumerate(store.trials()))[recorded:]:
        candidate = origins[trial.key]
        label = candidate.strategy.name or candidate.origin
        contestant = Contestant(label, PLAN, candidate.strategy)
        ring.file.add(row_of("search", name, number, contestant, trial, ring.given.warmup))


def tuning_name(budget: int) -> str:
    return f"{OWN}{budget}"


def tuning_store(ring: Ring, budget: int) -> FileStore:
    return FileStore(ring.folder / "tunings" / f"{ring.given.name}.{tuning_name(budget)}.jsonl")


def prepared(given: CollectionTarget, folder: Path) -> Domain:
    """The domain with its probed costs; probed and stored unless it was before."""
    if (known := facts_of(folder, given.name)) is not None:
        return known.domain
    assumed = domain_of(given)
    print(f"{given.name}: probing", flush=True)
    fit = probe_costs(TestbedLauncher(), assumed.cluster, *given.scales, brief=True)
    domain = replace(assumed, cluster=fit.cluster)
    limit = iteration_limit(domain)
    facts = ContestFacts(
        given.name,
        given.ring_over_compute,
        *given.scales,
        domain.compute_seconds,
        ring_seconds(domain.graph, domain.cluster),
        limit.seconds,
        limit.tightest,
        domain.id,
        ", ".join(f"{name} {value}" for name, value in provenance().items()),
        to_json(domain),
    )
    domain_facts(folder).add(given.name, facts)
    return domain


def is_done(file: ContestFile, settings: ContestSettings, domain: Domain) -> bool:
    """Everyone who has something to try has begun, and so has the last repeat of the finals."""
    begun = {row.competitor for row in file.rows}
    repeats = {row.number for row in file.rows if row.kind == "final"}
    waiting = [
        each
        for each in settings.competitors
        if each.name not in begun and each.ask(domain, (), 0) is not None
    ]
    tunings = settings.counts if settings.tunes else ()
    tuned = all(tuning_name(budget) in begun for budget in tunings)
    return tuned and not waiting and settings.repeats - 1 in repeats


def compete(given: CollectionTarget, folder: Path, settings: ContestSettings) -> None:
    """Everything of a domain that is not done yet.

    Raises:
        OutOfTime: the minutes are spent.
    """
    settings.check_time()
    file = ContestFile(folder, given.name)
    domain = prepared(given, folder)
    if is_done(file, settings, domain):
        print(f"{given.name}: done before", flush=True)
        return
    if settings.tunes:
        unseen_simulator(domain, folder)  # trained before anything is measured
    launcher = TestbedLauncher(workloads=(BASELINES,))
    workload = Workload(domain, "baselines", *given.scales)
    with launcher.open(workload) as pool:
        ring = Ring(given, domain, pool, folder, file, settings)
        for competitor in settings.competitors:
            try_settings(ring, competitor)
        for budget in settings.counts if settings.tunes else ():
            tune_with(ring, budget)
        repeat_finals(ring)


def try_settings(ring: Ring, competitor: Competitor) -> None:
    rows = ring.file.of("search", competitor.name)
    tried = [TriedSetting(row.number, row.size_mib, row.step_seconds) for row in rows]
    total = competitor.trials_within(ring.settings.trials)
    while len(tried) < total:
        size = competitor.ask(ring.domain, tried, 0)
        if size is None:
            break
        contestant = contestant_of(competitor, ring.domain, size)
        row = ring.measured("search", competitor.name, len(tried), contestant, passes=2)
        tried.append(TriedSetting(row.number, size, row.step_seconds))
        best = min((each.step_seconds for each in tried if each.step_seconds), default=None)
        outcome = f"{in_ms(row.step_seconds)} {row.error[:80]}".rstrip()
        progress = f"{competitor.name} {len(tried)} of {total}"
        ring.say(f"{progress}: {contestant.label}: {outcome}, best {in_ms(best)}")


def contestant_of(competitor: Competitor, domain: Domain, size_mib: float) -> Contestant:
    strategy = competitor.build(domain, size_mib)
    return Contestant(competitor.label_of(domain, size_mib), competitor.mode, strategy, size_mib)


def best_rows(rows: Sequence[ContestRow], count: int) -> list[ContestRow]:
    """The fastest of the first `count` trials, best first."""
    sound = [row for row in rows[:count] if row.step_seconds]
    return sorted(sound, key=lambda row: row.step_seconds or 0.0)[:FINALISTS]


def final_line(ring: Ring) -> list[Contestant]:
    """Who runs in the repeats, each strategy once; DDP first."""
    found: dict[str, Contestant] = {}
    for competitor in ring.settings.competitors:
        for count in ring.settings.counts:
            rows = ring.file.of("search", competitor.name)
            for row in best_rows(rows, competitor.trials_within(count)):
                if row.key not in found:
                    found[row.key] = contestant_of(competitor, ring.domain, row.size_mib)
    for budget in ring.settings.counts if ring.settings.tunes else ():
        strategies = stored_strategies(ring.folder, ring.given.name)
        for proposal in tuning_store(ring, budget).proposals():
            strategies[proposal.candidate.strategy.id] = proposal.candidate.strategy
        for row in best_rows(ring.file.of("search", tuning_name(budget)), budget):
            contestant = Contestant(row.label, PLAN, strategies[row.strategy_id])
            found.setdefault(row.key, contestant)
    return list(found.values())


def repeat_finals(ring: Ring) -> None:
    """Repeats in turn, each begun by another finalist."""
    line = final_line(ring)
    brought = {row.strategy_id for row in ring.file.rows if row.competitor.startswith(OWN)}
    own = (each.strategy for each in line if each.strategy.id in brought)
    store_strategies(ring.folder, ring.given.name, own)
    done = {(row.key, row.number) for row in ring.file.rows if row.kind == "final"}
    for repeat in range(ring.settings.repeats):
        for place in range(len(line)):
            contestant = line[(repeat + place) % len(line)]
            if (contestant.key, repeat) not in done:
                ring.measured("final", "", repeat, contestant, passes=1)
        ring.say(f"final repeat {repeat + 1} of {ring.settings.repeats}, {len(line)} strategies")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everyone = {each.name: each for each in COMPETITORS}
    parser.add_argument("--fixed", action="store_true", help="the domains fixed in advance")
    parser.add_argument("-o", "--out", type=Path, metavar="FOLDER")
    parser.add_argument("--domains", nargs="+", metavar="NAME", help="by default all")
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=["autosync", *everyone],
        default=["autosync", *everyone],
        metavar="NAME",
        help=f"of autosync, {', '.join(everyone)}; without autosync nothing is tuned",
    )
    parser.add_argument("--trials", type=int, help="of each competitor")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--budgets", type=int, nargs="+", help="of tunings")
    parser.add_argument(
        "--time-scale",
        type=float,
        metavar="K",
        help="of domains that are not begun in FOLDER; by default what gives each rank "
        f"{CORES_A_RANK:g} of this machine's cores",
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no trial after so many")
    given = parser.parse_args()
    settings = ContestSettings(
        given.trials or (FIXED_BUDGET if given.fixed else COUNTS[-1]),
        given.repeats or (FIXED_REPEATS if given.fixed else 10),
        tuple(everyone[name] for name in given.competitors if name in everyone),
        "autosync" in given.competitors,
        time.monotonic() + 60 * given.minutes,
        budgets=tuple(given.budgets or ((FIXED_BUDGET,) if given.fixed else COUNTS)),
    )
    folder = given.out or (FIXED_RECORDS if given.fixed else RECORDS)
    usual = [name for name, *_ in FIXED] if given.fixed else [each.name for each in DOMAINS]
    chosen = [domain_named(name, folder, given.time_scale) for name in given.domains or usual]
    for number, each in enumerate(chosen):
        try:
            compete(each, folder, settings)
        except OutOfTime:
            left = ", ".join(d.name for d in chosen[number:])
            print(f"out of time; the same command goes on with {left}")
            return
        except AutosyncError as error:
            print(f"{each.name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
