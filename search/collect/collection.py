"""Measures a dataset: many strategies of several domains, stopping anywhere and going on.

Of every domain the hand-designed strategies and random ones; each in two passes, every pass over
all strategies in an order of its own, so that a slow hour does not fall on one strategy alone;
a third where the two differ by more than 5 %. After every 20 trials one known strategy runs, the
control: where it is off the median of all that the domain's controls took before, and off it again
at once, those trials are repeated; where it fails twice, the collection ends, as all else would
fail. At the end, what failed or ran beside other load is measured once more.

Where the plan asks for picks, searches then choose further strategies in rounds (`pick_rounds`):
the first pass of a round comes before the next round is chosen, the others after the last one.

What is measured anew stands beside what was measured before until it is whole, then replaces it.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from autosync.cancellation import Cancelled, beside, cancelled_by
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.cluster_probe import probe_costs
from autosync.search.collect.collected_domains import (
    mark_replaced,
    remove_replaced,
    replaced_domain,
    store_domain,
    stored_domain,
    stored_domains,
)
from autosync.search.collect.collected_strategy import CollectedStrategy
from autosync.search.collect.collection_log import CollectionLog
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget, domain_of
from autosync.search.collect.pass_runner import PassRunner, ReportLine
from autosync.search.collect.pick_rounds import PickRound, choose_round, trained_elsewhere
from autosync.search.collect.remaining_passes import PASSES, OccasionPasses, strategies_of
from autosync.search.collect.stop_token import StopToken
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.runtime_dataset import MeasuredDomain, domain_of_rows
from autosync.trials.contract import Launcher, Workload
from autosync.trials.testbed.rate_probes import InaccurateLink

OPENINGS = 6
PAUSE_SECONDS = 10.0

T = TypeVar("T")


def collect(
    plan: CollectionPlan,
    folder: Path,
    launcher: Launcher,
    report: ReportLine,
    stopped: Callable[[], bool] = lambda: False,
    again: Collection[str] = (),
) -> None:
    """Measure what the folder's log lacks, and write the dataset after every domain.

    All first occasions come before any pick, and these before any second occasion. `stopped` is
    asked before every trial, and all the time while costs are probed and fitted and picks chosen:
    what was measured is then written, and the rest begins again the next time.
    again: names of the plan's targets to measure anew. Called with the same names after a stop, it
    goes on.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`. InvalidInput: the folder holds passes of a
            target at other scales than the plan's, or none of a domain whose strategies the choice
            of picks needs. AutosyncError: the control fails.
    """
    run = _Run(plan, folder, CollectionLog(folder), launcher, report, stopped)
    for target in plan.domains:
        if target.name in again:
            mark_replaced(folder, target.name)
    try:
        _measure_all(run)
    except Cancelled:
        run.log.checkpoint(stored_domains(folder))


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command: what `collect` was given, and what was measured before."""

    plan: CollectionPlan
    folder: Path
    log: CollectionLog
    launcher: Launcher
    report: ReportLine
    stopped: Callable[[], bool]


def _measure_all(run: _Run) -> None:
    """Raises Cancelled."""
    plan = run.plan
    occasions = max(target.occasions for target in plan.domains)
    for occasion in range(1, occasions + 1):
        for target in plan.domains:
            if occasion > target.occasions or run.stopped():
                continue
            _measure_target(run, target, occasion)
            run.log.checkpoint(stored_domains(run.folder))
        if occasion > 1:
            continue
        for target in plan.domains:
            if target.picks and not run.stopped():
                _measure_picks(run, target)
                run.log.checkpoint(stored_domains(run.folder))
    for target in plan.domains:
        _drop_replaced(run, target)


def _measure_target(run: _Run, target: CollectionTarget, occasion: int) -> None:
    """All that is still to measure of one domain on one occasion, on one pool."""
    domain = _probed_domain(run, target)
    passes = _passes(run, target, domain, occasion)
    if not passes.pending(run.log):
        return
    _require_scales(run.log, domain, target)
    run.report(f"{target.name}, occasion {occasion}: {len(passes.strategies)} strategies")
    with _runner(run, target, domain) as runner:
        later = _pick_passes_left(run, target, domain) if occasion == 1 else 0
        runner.run_all(passes, later)


def _measure_picks(run: _Run, target: CollectionTarget) -> None:
    """Choose and measure what is missing of a domain's picks, on one pool."""
    domain = _probed_domain(run, target)
    base = _passes(run, target, domain, 1)
    if base.pending(run.log):
        return  # stopped before they were whole
    rounds = range(1, run.plan.pick_rounds + 1)
    chosen = run.log.picks(domain.id)
    whole = {one.round for one in chosen} == set(rounds)
    if whole and not _pick_passes(run, domain, chosen).pending(run.log):
        return
    _require_scales(run.log, domain, target)
    run.report(f"{target.name}: {target.picks} picks in {run.plan.pick_rounds} rounds")
    with cancelled_by(StopToken(run.stopped)):
        simulator = beside(trained_elsewhere, _pick_sources(run, target), domain)
    with _runner(run, target, domain) as runner:
        for number in rounds:
            chosen = [one for one in run.log.picks(domain.id) if one.round == number]
            if not chosen:
                chosen = _choose_round(run, target, domain, simulator, number)
            left = (run.plan.pick_rounds - number) * len(chosen) + target.picks
            runner.run_all(_pick_passes(run, domain, chosen, (1,)), later=left)
            if run.stopped():
                return
        runner.run_all(_pick_passes(run, domain, run.log.picks(domain.id)))


def _choose_round(
    run: _Run,
    target: CollectionTarget,
    domain: Domain,
    simulator: LearnedSimulator,
    number: int,
) -> list[CollectedStrategy]:
    """Choose a round and store it, before anything of it is measured."""
    begun = time.monotonic()
    trials = run.log.trials(domain.id, picks=True)
    if len(trials):
        known = domain_of_rows(domain, trials)
        with cancelled_by(StopToken(run.stopped)):
            beside(simulator.refit, domain, known.population, known.label_seconds)
    earlier = [
        one.strategy
        for one in (*_passes(run, target, domain, 1).strategies, *run.log.picks(domain.id))
    ]
    asked = PickRound(
        number, target.picks // run.plan.pick_rounds, run.plan.proposals, run.plan.seed
    )
    with cancelled_by(StopToken(run.stopped)):
        chosen = beside(choose_round, domain, simulator, earlier, asked)
    if len(chosen) < asked.picks:
        run.report(f"  only {len(chosen)} of {asked.picks} picks differ from what is there")
    run.log.record_round(domain.id, chosen)
    run.report(f"  round {number}: {len(chosen)} chosen in {time.monotonic() - begun:.0f} s")
    return chosen


def _pick_sources(run: _Run, target: CollectionTarget) -> list[MeasuredDomain]:
    """What was measured of the plan's sources but the target, picks left out.

    Raises:
        InvalidInput: nothing was, of one of them.
    """
    sources = []
    for name in run.plan.pick_sources:
        if name == target.name:
            continue
        domain = stored_domain(run.folder, name)
        trials = None if domain is None else run.log.trials(domain.id, picks=False)
        if domain is None or trials is None or not len(trials):
            raise InvalidInput(
                f"the picks of {target.name} need the strategies of {name}, of which none was "
                "measured.",
                thing="pick_sources",
                value=name,
                remedy=f"Collect {name} first, or take it out of the plan's pick_sources.",
            )
        sources.append(domain_of_rows(domain, trials))
    return sources


def _pick_passes_left(run: _Run, target: CollectionTarget, domain: Domain) -> int:
    """Of those chosen and of those still to be chosen, third passes not counted."""
    chosen = run.log.picks(domain.id)
    return 2 * (target.picks - len(chosen)) + _pick_passes(run, domain, chosen).left(run.log)


def _pick_passes(
    run: _Run,
    domain: Domain,
    chosen: Sequence[CollectedStrategy],
    numbers: tuple[int, ...] = PASSES,
) -> OccasionPasses:
    return OccasionPasses(domain.id, 1, tuple(chosen), run.plan.seed, numbers)


@contextmanager
def _runner(run: _Run, target: CollectionTarget, domain: Domain) -> Iterator[PassRunner]:
    """On a pool of its own, closed at the end."""
    byte_scale, time_scale = target.scales
    workload = Workload(domain, byte_scale=byte_scale, time_scale=time_scale)
    pool = _patiently(run, lambda: run.launcher.open(workload))
    try:
        yield PassRunner(target, domain, pool, run.log, run.report, run.stopped)
    finally:
        pool.close()


def _require_scales(log: CollectionLog, domain: Domain, target: CollectionTarget) -> None:
    """Passes at other scales are not repeats of these.

    Raises:
        InvalidInput: there are some.
    """
    for byte_scale, time_scale in log.scales(domain.id):
        if not np.allclose((byte_scale, time_scale), target.scales):
            raise InvalidInput(
                f"{target.name} was measured at s = {byte_scale:g}, k = {time_scale:g}; the plan "
                f"says s = {target.byte_scale}, k = {target.time_scale}.",
                thing=target.name,
                value=time_scale,
                remedy=f"Measure all of it at the plan's scales: --again {target.name}.",
            )


def _patiently(run: _Run, attempt: Callable[[], T]) -> T:
    """Links that are off the cluster file are looked at again some times: what loads a machine for
    a moment must not end hours of work."""
    for again in reversed(range(OPENINGS)):
        try:
            return attempt()
        except InaccurateLink as error:
            if not again or run.stopped():
                raise
            run.report(f"  {error.message} Again in {PAUSE_SECONDS:.0f} s, {again} times at most.")
            until = time.monotonic() + PAUSE_SECONDS
            while time.monotonic() < until and not run.stopped():
                time.sleep(0.1)
    raise AssertionError("the last attempt returns or raises")


def _probed_domain(run: _Run, target: CollectionTarget) -> Domain:
    """The target's domain with probed costs, probed once and stored."""
    if domain := stored_domain(run.folder, target.name):
        return domain
    domain = domain_of(target)
    run.report(f"{target.name}: measuring what messages cost")
    stated = domain.cluster
    with cancelled_by(StopToken(run.stopped)):
        found = _patiently(
            run, lambda: probe_costs(run.launcher, stated, *target.scales, say=run.report)
        )
    domain = replace(domain, cluster=found.cluster)
    store_domain(run.folder, target.name, domain)
    return domain


def _drop_replaced(run: _Run, target: CollectionTarget) -> None:
    """Drop what the target's passes replace, once they are whole."""
    domain = stored_domain(run.folder, target.name)
    old = replaced_domain(run.folder, target.name)
    if domain is None or old is None or domain == old:
        return
    if any(_passes(run, target, domain, n + 1).pending(run.log) for n in range(target.occasions)):
        return
    run.log.forget(old.id)
    run.log.checkpoint(stored_domains(run.folder))
    remove_replaced(run.folder, target.name)
    run.report(f"{target.name}: what was measured before is replaced")


def _passes(run: _Run, target: CollectionTarget, domain: Domain, occasion: int) -> OccasionPasses:
    """Of the domain's strategies, picks not counted."""
    strategies = strategies_of(
        domain,
        run.plan.strategies_of(target),
        run.plan.seed,
        run.log.strategies(domain.id),
        run.log.picks(domain.id),
    )
    return OccasionPasses(domain.id, occasion, tuple(strategies), run.plan.seed)
