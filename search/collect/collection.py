"""Measures a dataset: many strategies of several domains, stopping anywhere and going on.

Of every domain the hand-designed strategies and random ones; each in two passes, every pass over
all strategies in an order of its own, so that a slow hour does not fall on one strategy alone;
a third where the two differ by more than 5 %. After every 20 trials one known strategy runs, the
control: where it is off the median of all that the domain's controls took before, and off it again
at once, those trials are repeated; where it fails twice, the collection ends, as all else would
fail. At the end, what failed or ran beside other load is measured once more.

What is measured anew stands beside what was measured before until it is whole, then replaces it.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

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
from autosync.search.collect.collection_log import CollectionLog
from autosync.search.collect.collection_plan import CollectionPlan, CollectionTarget, domain_of
from autosync.search.collect.pass_runner import PassRunner, ReportLine
from autosync.search.collect.remaining_passes import OccasionPasses, strategies_of
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

    All first occasions come before any second one. `stopped` is asked before every trial.
    again: names of the plan's targets to measure anew. Called with the same names after a stop, it
    goes on.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`. InvalidInput: the folder holds passes of a
            target at other scales than the plan's. AutosyncError: the control fails.
    """
    run = _Run(plan, folder, CollectionLog(folder), launcher, report, stopped)
    for target in plan.domains:
        if target.name in again:
            mark_replaced(folder, target.name)
    occasions = max(target.occasions for target in plan.domains)
    for occasion in range(1, occasions + 1):
        for target in plan.domains:
            if occasion > target.occasions or stopped():
                continue
            _measure_target(run, target, occasion)
            run.log.checkpoint(stored_domains(folder))
    for target in plan.domains:
        _drop_replaced(run, target)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command: what `collect` was given, and what was measured before."""

    plan: CollectionPlan
    folder: Path
    log: CollectionLog
    launcher: Launcher
    report: ReportLine
    stopped: Callable[[], bool]


def _measure_target(run: _Run, target: CollectionTarget, occasion: int) -> None:
    """All that is still to measure of one domain on one occasion, on one pool."""
    domain = _probed_domain(run, target)
    passes = _passes(run, domain, occasion)
    if not passes.pending(run.log):
        return
    byte_scale, time_scale = target.scales
    _require_scales(run.log, domain, target)
    run.report(f"{target.name}, occasion {occasion}: {len(passes.strategies)} strategies")
    workload = Workload(domain, byte_scale=byte_scale, time_scale=time_scale)
    pool = _patiently(run, lambda: run.launcher.open(workload))
    try:
        PassRunner(target, domain, passes, pool, run.log, run.report, run.stopped).run_all()
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
    if any(_passes(run, domain, n + 1).pending(run.log) for n in range(target.occasions)):
        return
    run.log.forget(old.id)
    run.log.checkpoint(stored_domains(run.folder))
    remove_replaced(run.folder, target.name)
    run.report(f"{target.name}: what was measured before is replaced")


def _passes(run: _Run, domain: Domain, occasion: int) -> OccasionPasses:
    strategies = strategies_of(domain, run.plan.strategies, run.plan.seed)
    return OccasionPasses(domain.id, occasion, tuple(strategies), run.plan.seed)
