"""Fits a cluster's communication costs to measured iterations, through the timeline.

Single messages tell a startup; what many messages at once cost (the hosts' processors, which work
on one at a time) shows only in whole iterations. So strategies whose plans hold from one to
hundreds of messages of each kind are measured, and the costs are those with which the timeline
agrees best, and with what single messages and other clusters let expect: a few strategies cannot
tell two dozen costs apart, and what they do not tell stays at what is known (docs/simulator.md).

A probe times a model made for it. The first trials of a tuning time the user's model, and
strategies whose kinds of messages are mixed: they correct the probed costs by the same fit. Costs
that no trial shows stay as they were probed; others move as far as their prior and the number of
trials allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.cluster import Cluster, MessageKind
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.plan import PlanTable
from autosync.plan.plan_table import ALL_RANKS, TeamTable
from autosync.population import Population
from autosync.simulator.cost.collective_costs import has_collective_model
from autosync.simulator.cost.message_classes import COST_KIND
from autosync.simulator.cost.network import network_of
from autosync.simulator.extension_prediction import restated_strategies
from autosync.simulator.fitting.cost_parameters import (
    CostParameters,
    PriorStd,
    cost_parameters,
    fit_regularized,
    kinds_of_messages,
)
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import simulate

F64 = NDArray[np.float64]

TYPICAL_HOST_SECONDS = 1e-4
TYPICAL_HOST_BYTES = 0.02
"""A message's time on a host's processors, which no single message shows: by itself, and by its
bytes over the slowest NIC's seconds per byte. The first is the median of eleven emulated clusters'
probes, between gloo's ranks on two cores; four of five kinds of message lie within a factor of
three (datasets/runtimes/targets). The second is an order of magnitude: these probes, fitted without
what is known before, had it anywhere from 0 to 0.3."""

SINGLE_MESSAGES = PriorStd(
    startup=1.0,
    host=1.5,
    least_seconds=1e-4,
    bytes_factor=0.2,
    overlap_slowdown=0.0,
    link_seconds_per_send=1e-5,
)
"""Of costs that only single messages have told. Compute slows in a job of its own, not here."""

PROBE_NOISE = 0.04
"""Of an iteration of the probe about the timeline with the right costs, in log seconds."""

FEWEST_TRIALS = 8
"""Below that many the costs stay as they are."""

MODEL_NOISE = 0.06
"""By how much a trial is off the timeline with the right costs, in log seconds: what the timeline
leaves out, and the noise of a trial."""

PROBED = PriorStd(
    startup=0.3,
    host=0.4,
    least_seconds=3e-5,
    bytes_factor=0.4,
    overlap_slowdown=0.1,
    link_seconds_per_send=1e-5,
)
"""Of costs that a probe has fitted."""

TRIAL_ITERATIONS = 8
"""Of the least-squares method, at most."""


@dataclass(frozen=True, slots=True)
class CostFit:
    """cluster: with fitted costs. residual: mean absolute relative error; before: with the costs
    it came with. measured, predicted f64[n]: seconds an iteration."""

    cluster: Cluster
    residual: float
    before: float
    measured: F64
    predicted: F64


def fit_costs(
    domain: Domain, population: Population, step_seconds: F64, max_iterations: int = 12
) -> CostFit:
    """Costs of every kind of message that the measured plans hold; others stay as they are.

    domain: its cluster has the costs of single messages. max_iterations: of the least squares.

    Raises:
        InvalidInput: no strategy, or not one positive measurement for each.
    """
    _refuse_unmeasured(population, step_seconds)
    known = domain.cluster.overlap_slowdown
    if known is None:  # what is typical of a job is not of the probe's small model
        domain = replace(domain, cluster=replace(domain.cluster, overlap_slowdown=0.0))
    plans = compile_plans_fast(population, domain)
    kinds = kinds_of_messages(plans, population, domain.cluster)
    expected = with_typical_hosts(domain.cluster, kinds)
    parameters = cost_parameters(expected, kinds, SINGLE_MESSAGES)
    cluster = _fitted_cluster(
        domain, plans, population, step_seconds, parameters, PROBE_NOISE, max_iterations
    )
    predicted = simulate(plans, population, replace(domain, cluster=cluster))
    residual = _mean_error(predicted, step_seconds)
    costs = tuple(
        replace(cost, residual=residual) if cost.kind in kinds else cost for cost in cluster.costs
    )
    return CostFit(
        replace(cluster, costs=costs, overlap_slowdown=known),
        residual,
        _mean_error(simulate(plans, population, domain), step_seconds),
        step_seconds,
        predicted,
    )


def recalibrated(domain: Domain, population: Population, step_seconds: F64) -> Domain:
    """The domain with the costs of its cluster under which the timeline agrees best with the
    trials, and with what was known before.

    population: the strategies of the trials; those that are predicted in a domain of their own
    (`restated_strategies`) count for nothing: what else travels there is not known well enough.
    step_seconds `(strategies,)`: measured; NaN where one failed. With fewer than `FEWEST_TRIALS`
    the domain is returned as it is; also where the model of NCCL's collectives has its costs, since
    costs that a cluster states replace that model and the curves that were measured.
    """
    if has_collective_model(domain.cluster):
        return domain
    sound = np.isfinite(step_seconds) & (step_seconds > 0)
    ran = np.flatnonzero(sound & ~restated_strategies(population))
    if len(ran) < FEWEST_TRIALS:
        return domain
    tried = population.take(ran)
    plans = compile_plans_fast(tried, domain)
    kinds = kinds_of_messages(plans, tried, domain.cluster)
    known = with_assumed_costs(domain.cluster, kinds, plans.teams)
    parameters = cost_parameters(known, kinds, PROBED)
    cluster = _fitted_cluster(
        domain, plans, tried, step_seconds[ran], parameters, MODEL_NOISE, TRIAL_ITERATIONS
    )
    return replace(domain, cluster=cluster)


def with_assumed_costs(cluster: Cluster, kinds: Sequence[MessageKind], teams: TeamTable) -> Cluster:
    """The cluster with costs of its own for these kinds of messages. Those that were assumed hold
    what the network adds to such alone: the latencies of a message's steps among all ranks, and
    what it waits besides the bytes of its busiest link."""
    assumed = [cost for cost in map(cluster.cost, kinds) if cost not in cluster.costs]
    stated = replace(cluster, costs=(*cluster.costs, *assumed))
    before, after = network_of(cluster, teams), network_of(stated, teams)
    found = []
    for cost in assumed:
        operation = next(each for each, paid in COST_KIND.items() if paid == cost.kind)
        place = int(before.class_of(operation, ALL_RANKS, 0 if operation is Op.PUSH else -1))
        latency = max(0.0, float(before.startup_seconds[place] - after.startup_seconds[place]))
        waits = max(0.0, float(before.seconds_per_byte[place] - after.seconds_per_byte[place]))
        of_worker = cost.startup_seconds_per_worker + latency / cluster.world_size
        by_byte = cost.seconds_per_byte + waits
        found.append(replace(cost, startup_seconds_per_worker=of_worker, seconds_per_byte=by_byte))
    return replace(cluster, costs=(*cluster.costs, *found))


def _fitted_cluster(
    domain: Domain,
    plans: PlanTable,
    population: Population,
    step_seconds: F64,
    parameters: CostParameters,
    noise: float,
    max_iterations: int,
) -> Cluster:
    """The cluster whose costs explain the measured seconds best. noise: in log seconds."""

    def log_seconds(vector: F64) -> F64:
        check_cancelled()
        corrected = replace(domain, cluster=parameters.cluster_with(vector))
        result: F64 = np.log(simulate(plans, population, corrected))
        return result

    low, high = parameters.bounds()
    vector = fit_regularized(log_seconds, np.log(step_seconds), noise, low, high, max_iterations)
    return parameters.cluster_with(vector)


def with_typical_hosts(cluster: Cluster, kinds: Sequence[MessageKind]) -> Cluster:
    """The cluster with typical host times where `kinds` have none, as single messages leave it."""
    byte_seconds = 1.0 / float(cluster.nic_bytes_per_second().min())
    expected = []
    for kind in kinds:
        cost = cluster.cost(kind)
        if cost.host_seconds == 0.0 and cost.host_seconds_per_byte == 0.0:
            cost = replace(
                cost,
                host_seconds=TYPICAL_HOST_SECONDS,
                host_seconds_per_byte=TYPICAL_HOST_BYTES * byte_seconds,
            )
        expected.append(cost)
    others = tuple(cost for cost in cluster.costs if cost.kind not in kinds)
    return replace(cluster, costs=(*expected, *others))


def _refuse_unmeasured(population: Population, step_seconds: F64) -> None:
    if len(population) != len(step_seconds) or not len(population) or not (step_seconds > 0).all():
        raise InvalidInput(
            f"{len(population)} strategies have {len(step_seconds)} measurements, or some that "
            "are not positive.",
            thing="step_seconds",
            value=len(step_seconds),
            remedy="Give one positive number of seconds for each strategy.",
        )


def _mean_error(predicted: F64, measured: F64) -> float:
    return float(np.mean(np.abs(predicted / measured - 1.0)))
