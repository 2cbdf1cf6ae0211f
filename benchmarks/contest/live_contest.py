"""AutoSync beside tuned baselines on emulated clusters, 60 trials each, in one run.

    python -m benchmarks.contest.live_contest [--domains resnet50-4x1 ...] [--minutes 240]
        [--trials 60] [--repeats 10] [--competitors ddp dear_bo ...] [-o FOLDER]
        [--budgets 12 20 60] [--time-scale K] [--search refined_share=0 first_designs=30 ...]

Leave the machine alone meanwhile. Of each domain (`live_domains`) the links are probed once, as
`autosync tune` does; then every competitor tries its settings on the same workers, and AutoSync
tunes three times, with 12, 20 and 60 trials, since a tuning divides its budget. The two best of
each after 12, 20 and 60 trials run again in interleaved repeats; the figures are these alone.

--search: fields of a tuning's settings (`autosync.search.loop.settings`) that shall differ from the
defaults, each FOLDER for one such choice. To compare two, give both FOLDERs the domain's files
(live/NAME.domain.json and .facts.json) of an earlier run, so that both have the same probed costs.

Every trial is a line in a file of FOLDER (by default benchmarks/contest/records), and is not run
again: after --minutes, Ctrl-C or a crash the same command goes on. The page is written by
benchmarks.contest.contest_tables.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autosync.domain import Domain
from autosync.errors import AutosyncError, InvalidInput
from autosync.search.cluster_probe import probe_costs
from autosync.search.collect.collection_plan import CollectionTarget, domain_of, ring_seconds
from autosync.simulator.limit import iteration_limit
from autosync.trials.contract import Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.scales import CORES_A_RANK
from benchmarks.contest import RECORDS
from benchmarks.contest.contest_ring import (
    BASELINES,
    COUNTS,
    PLAN,
    Contestant,
    ContestSettings,
    OutOfTime,
    Ring,
    in_ms,
)
from benchmarks.contest.live_domains import DOMAINS, domain_named
from benchmarks.contest.live_records import (
    ContestFacts,
    ContestFile,
    ContestRow,
    store_domain,
    store_strategies,
    stored_domain,
    stored_strategies,
)
from benchmarks.contest.live_tunings import (
    OWN,
    search_settings,
    tune_with,
    tuning_name,
    tuning_store,
)
from benchmarks.contest.tuned_competitors import (
    COMPETITORS,
    DRAWS,
    Competitor,
    TriedSetting,
)
from benchmarks.contest.unseen_simulator import unseen_simulator
from benchmarks.measure import provenance

FINALISTS = 2
"""Of a competitor after so many trials, that run again in the repeats."""


def prepared(given: CollectionTarget, folder: Path) -> Domain:
    """The domain with its probed costs; probed and stored unless it was before."""
    if (known := stored_domain(folder, given.name)) is not None:
        return known
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
    )
    store_domain(folder, given.name, domain, facts)
    return domain


def compete(given: CollectionTarget, folder: Path, settings: ContestSettings) -> None:
    """Everything of a domain that is not done yet.

    Raises:
        OutOfTime: the minutes are spent.
    """
    settings.check_time()
    mark = folder / "live" / f"{given.name}.done"
    if mark.is_file() and mark.read_text() == settings.words:
        print(f"{given.name}: done before", flush=True)
        return
    domain = prepared(given, folder)
    if settings.tunes:
        unseen_simulator(domain, folder)  # trained before anything is measured
    launcher = TestbedLauncher(workloads=(BASELINES,))
    workload = Workload(domain, "baselines", *given.scales)
    with launcher.open(workload) as pool:
        file = ContestFile.opened(folder, given.name)
        ring = Ring(given, domain, pool, folder, file, settings)
        for competitor in settings.competitors:
            try_settings(ring, competitor)
        for budget in settings.counts if settings.tunes else ():
            tune_with(ring, budget)
        repeat_finals(ring)
    mark.write_text(settings.words)


def try_settings(ring: Ring, competitor: Competitor) -> None:
    rows = ring.file.of("search", competitor.name)
    tried = [TriedSetting(row.number, row.size_mib, row.step_seconds) for row in rows]
    total = min(competitor.trials, ring.settings.trials)
    while len(tried) < total:
        size = competitor.ask(ring.domain, tried, 0)
        if size is None:
            break
        contestant = contestant_of(competitor, ring.domain, size)
        row = ring.measured("search", competitor.name, len(tried), contestant, passes=2)
        tried.append(TriedSetting(row.number, size, row.step_seconds))
        best = min((each.step_seconds for each in tried if each.step_seconds), default=None)
        told = f"{in_ms(row.step_seconds)} {row.error[:80]}".rstrip()
        progress = f"{competitor.name} {len(tried)} of {total}"
        ring.say(f"{progress}: {contestant.label}: {told}, best {in_ms(best)}")


def contestant_of(competitor: Competitor, domain: Domain, size_mib: float) -> Contestant:
    label = f"{competitor.name} {size_mib:.3g}" if competitor.tuned else competitor.name
    strategy = competitor.build(domain, size_mib)
    return Contestant(label, competitor.mode, strategy, size_mib)


def best_rows(rows: Sequence[ContestRow], count: int) -> list[ContestRow]:
    """The fastest of the first `count` trials, best first."""
    sound = [row for row in rows[:count] if row.step_seconds]
    return sorted(sound, key=lambda row: row.step_seconds or 0.0)[:FINALISTS]


def final_line(ring: Ring) -> list[Contestant]:
    """Who runs in the repeats, each strategy once; DDP first."""
    found: dict[str, Contestant] = {}
    for competitor in ring.settings.competitors:
        for count in ring.settings.counts:
            for row in best_rows(ring.file.of("search", competitor.name), count):
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
    everyone = {each.name: each for each in (*COMPETITORS, *DRAWS)}
    usual = ["autosync", *(each.name for each in COMPETITORS)]
    parser.add_argument("-o", "--out", type=Path, default=RECORDS, metavar="FOLDER")
    parser.add_argument("--domains", nargs="+", default=[d.name for d in DOMAINS], metavar="NAME")
    parser.add_argument(
        "--competitors",
        nargs="+",
        choices=["autosync", *everyone],
        default=usual,
        metavar="NAME",
        help=f"of autosync, {', '.join(everyone)}; without autosync nothing is tuned",
    )
    parser.add_argument("--trials", type=int, default=COUNTS[-1])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budgets", type=int, nargs="+", default=COUNTS, help="of tunings")
    parser.add_argument("--search", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--time-scale",
        type=float,
        metavar="K",
        help="of domains that are not begun in FOLDER; by default what gives each rank "
        f"{CORES_A_RANK:g} of this machine's cores",
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no trial after so many")
    given = parser.parse_args()
    try:
        search = search_settings(given.search)
    except InvalidInput as error:
        parser.error(str(error))
    settings = ContestSettings(
        given.trials,
        given.repeats,
        tuple(everyone[name] for name in given.competitors if name in everyone),
        "autosync" in given.competitors,
        time.monotonic() + 60 * given.minutes,
        search,
        tuple(given.budgets),
    )
    chosen = [domain_named(name, given.out, given.time_scale) for name in given.domains]
    for number, each in enumerate(chosen):
        try:
            compete(each, given.out, settings)
        except OutOfTime:
            left = ", ".join(d.name for d in chosen[number:])
            print(f"out of time; the same command goes on with {left}")
            return
        except AutosyncError as error:
            print(f"{each.name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
