"""Measures a dataset: many strategies of several domains. Stops anywhere and resumes.

In each domain the hand-designed strategies and random ones are measured in two passes, and in a
third where the two differ by more than 5 %. Every pass runs over all strategies in an order of its
own, so that a slow hour does not affect one strategy alone. After every 20 trials the control runs,
a known strategy. Where its seconds differ twice in a row from the median of the domain's earlier
controls, those trials are repeated; where it fails twice, the collection ends. Passes that failed
or ran beside other load are repeated once at the end.

`again` measures a domain anew. The new passes are kept beside the old ones and replace them once
they are complete.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from autosync.cancellation import CancellationToken, Cancelled, cancelled_by
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.cluster_probe import probe_costs
from autosync.search.collect.collection_log import (
    CollectionLog,
    held_alone,
    mark_replaced,
    remove_replaced,
    store_domain,
    stored_domain,
    stored_domains,
)
from autosync.search.collect.collection_passes import (
    OccasionPasses,
    PassRunner,
    ReportLine,
    strategies_of,
)
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget, domain_of
from autosync.trials.contract import Launcher, Pool, Workload
from autosync.trials.testbed.self_check import InaccurateLink

OPENINGS = 6
PAUSE_SECONDS = 10.0

T = TypeVar("T")


class StopToken(CancellationToken):
    """Cancelled as soon as `stopped` returns true. For probes and fits, which may take minutes;
    between passes `stopped` is asked directly, so that a pass that runs is not lost."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self.reason = "the collection is to stop"
        self._stopped = stopped

    @property
    def cancelled(self) -> bool:
        return self._stopped()


@dataclass(frozen=True, slots=True)
class CollectionRun:
    """One run of the command. stopped: asked before every trial, and throughout a probe."""

    plan: CollectionPlan
    folder: Path
    log: CollectionLog
    launcher: Launcher
    report: ReportLine
    stopped: Callable[[], bool]

    def checkpoint(self) -> None:
        self.log.checkpoint(stored_domains(self.folder))


def collect(
    plan: CollectionPlan,
    folder: Path,
    launcher: Launcher,
    report: ReportLine,
    stopped: Callable[[], bool] = lambda: False,
    again: Collection[str] = (),
) -> None:
    """Measure what the folder's log lacks, and write the dataset after every domain.

    All first occasions come before any second occasion. When `stopped` returns true, the dataset of
    what was measured is written, and the same call resumes later.
    again: names of the plan's targets to measure anew.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`. InvalidInput: the folder holds passes of a
            target at other scales than the plan's, or by another launcher; or another collection
            has it. AutosyncError: the control fails.
    """
    with held_alone(folder):
        run = CollectionRun(plan, folder, CollectionLog(folder), launcher, report, stopped)
        for name in {target.name for target in plan.domains} & set(again):
            mark_replaced(folder, name)
        try:
            for occasion in range(1, 1 + max(target.occasions for target in plan.domains)):
                for target in plan.domains:
                    if occasion <= target.occasions and not stopped():
                        _measure_target(run, target, occasion)
                        run.checkpoint()
            for target in plan.domains:
                _drop_replaced(run, target)
        except Cancelled:
            run.checkpoint()


def _measure_target(run: CollectionRun, target: CollectionTarget, occasion: int) -> None:
    """Run all missing passes of a domain on one occasion, on one pool."""
    domain = probed_domain(run, target)
    passes = passes_of(run, target, domain, occasion)
    if passes.pending(run.log):
        run.report(f"{target.name}, occasion {occasion}: {len(passes.strategies)} strategies")
        with pass_runner(run, target, domain) as runner:
            runner.run_all(passes)


def probed_domain(run: CollectionRun, target: CollectionTarget) -> Domain:
    """The target's domain with probed costs, probed once and stored."""
    if domain := stored_domain(run.folder, target.name):
        return domain
    domain = domain_of(target)
    run.report(f"{target.name}: measuring what messages cost")
    stated = domain.cluster
    with cancelled_by(StopToken(run.stopped)):
        found = _retried(
            run, lambda: probe_costs(run.launcher, stated, *target.scales, say=run.report)
        )
    domain = replace(domain, cluster=found.cluster)
    store_domain(run.folder, target.name, domain)
    return domain


def passes_of(
    run: CollectionRun, target: CollectionTarget, domain: Domain, occasion: int
) -> OccasionPasses:
    """The passes of the domain's strategies other than picks."""
    strategies = strategies_of(
        domain,
        run.plan.strategies_of(target),
        run.plan.seed,
        run.log.strategies(domain.id),
        run.log.picks(domain.id),
    )
    return OccasionPasses(domain.id, occasion, tuple(strategies), run.plan.seed)


@contextmanager
def pass_runner(
    run: CollectionRun, target: CollectionTarget, domain: Domain
) -> Iterator[PassRunner]:
    """A runner on a pool of its own.

    Raises:
        InvalidInput: the folder holds passes of the domain at other scales or by another launcher,
            which are no repeats.
    """
    byte_scale, time_scale = target.scales
    for measured in run.log.scales(domain.id):
        if not np.allclose(measured, target.scales):
            raise InvalidInput(
                f"{target.name} was measured at s = {measured[0]:g}, k = {measured[1]:g}; the plan "
                f"says s = {target.byte_scale}, k = {target.time_scale}.",
                thing=target.name,
                value=measured[1],
                remedy=f"Measure all of it at the plan's scales: --again {target.name}.",
            )
    workload = Workload(domain, byte_scale=byte_scale, time_scale=time_scale)
    pool = _retried(run, lambda: run.launcher.open(workload))
    try:
        _refuse_other_launchers(target, run.log.launchers(domain.id), pool)
        yield PassRunner(target, domain, pool, run.log, run.report, run.stopped)
    finally:
        pool.close()


def _refuse_other_launchers(target: CollectionTarget, measured: set[str], pool: Pool) -> None:
    """Seconds over shaped links and over the loopback do not compare. What `auto` stands for shows
    only once it has opened a pool."""
    kind = pool.description.partition(" ")[0]
    for other in sorted(measured - {kind}):
        raise InvalidInput(
            f"{target.name} was measured by launcher {other}; this is {kind}.",
            thing=target.name,
            value=kind,
            remedy=f"Go on with --launcher {other}, or measure all of it anew: --again "
            f"{target.name}.",
        )


def _retried(run: CollectionRun, attempt: Callable[[], T]) -> T:
    """Tries again when links differ from the cluster file: other load on the machine may cause that
    for a moment, which must not end hours of work."""
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


def _drop_replaced(run: CollectionRun, target: CollectionTarget) -> None:
    """Drop the passes of the domain that was set aside, once the new ones are complete."""
    domain = stored_domain(run.folder, target.name)
    old = stored_domain(run.folder, target.name, replaced=True)
    if domain is None or old is None or domain == old:
        return
    if any(passes_of(run, target, domain, n + 1).pending(run.log) for n in range(target.occasions)):
        return
    run.log.forget(old.id)
    run.checkpoint()
    remove_replaced(run.folder, target.name)
    run.report(f"{target.name}: what was measured before is replaced")
