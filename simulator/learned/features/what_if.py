"""When the timeline has each message start and end, and how an iteration depends on constants.

The what-ifs are the timeline's sensitivities: by how much a strategy's time grows if a constant of
the cluster (the startup of a kind of message, the copies of an engine, a link) is larger than
believed. A weight on such a column is a statement about the cluster, not about a strategy, so
it holds for strategies, models and clusters that were never measured. Of strategies that swap
activations, compute is as long as the timeline has it: with its waits for transfers.

Raise InvalidStrategy, as the timeline, for a budget that holds no training step.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.compute_time import slowest_factors
from autosync.simulator.cost.network import network_of
from autosync.simulator.learned.features.feature_names import FAMILIES, WHAT_IFS
from autosync.simulator.swapped_ranks import swap_slowdowns
from autosync.simulator.timeline.event_loop import (
    ComputeArrays,
    CostArrays,
    InFlight,
    MessageArrays,
    play,
)
from autosync.simulator.timeline.timeline_simulator import arguments

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimelineTimes:
    """seconds f64[n]: an iteration, staleness left out. start, flowing, done f64[M]: when each
    message is issued, on the wire and received, seconds from the start of backward."""

    seconds: F64
    start: F64
    flowing: F64
    done: F64


@dataclass(frozen=True, slots=True)
class TimelineInputs:
    """What the timeline plays. factors f64[n]: by which compute of a strategy's slowest replica is
    longer than the profile's, waits for swapped activations included. waiting f64[n]: of these
    factors what is no compute."""

    messages: MessageArrays
    costs: CostArrays
    compute: ComputeArrays
    in_flight: InFlight
    factors: F64
    waiting: F64


def timeline_times(plans: PlanTable, population: Population, domain: Domain) -> TimelineTimes:
    """The timeline's iteration of each strategy, and its times of every message."""
    return _simulate(_inputs(plans, population, domain))


def what_ifs(plans: PlanTable, population: Population, domain: Domain, seconds: F64) -> F64:
    """A `(strategies, len(WHAT_IFS))` array: log of each what-if's time over `seconds`, which
    are the timeline's own."""
    inputs = _inputs(plans, population, domain)
    operations = network_of(domain.cluster, plans.teams).operations
    present = set(np.unique(plans.operation).tolist())
    columns = []
    for name in WHAT_IFS:
        family = FAMILIES.get(name.partition("_")[2])
        if family is not None and not present.intersection(family):
            columns.append(np.zeros(len(plans)))
            continue
        costs = _changed(name, inputs.costs, np.isin(operations, family or ()), domain)
        factors = inputs.factors
        if name == "compute":  # waits for transfers to host memory stay as they are
            factors = factors + 0.1 * (factors - inputs.waiting)
        other = _simulate(replace(inputs, costs=costs, factors=factors))
        columns.append(np.log(other.seconds / seconds))
    return np.column_stack(columns)


def _changed(
    name: str, costs: CostArrays, of_family: NDArray[np.bool_], domain: Domain
) -> CostArrays:
    if name == "bandwidth":
        return costs._replace(per_byte=costs.per_byte * 1.1)
    if name == "engine":
        return costs._replace(host=costs.host + 0.5 * float(np.median(costs.startup)))
    if name == "one_in_flight":
        return costs._replace(in_flight=np.where(costs.streamed, costs.in_flight, 1))
    if name.startswith("startup_"):
        return costs._replace(startup=np.where(of_family, 1.5, 1.0) * costs.startup)
    if name.startswith("copies_"):
        slowest = 1.0 / float(domain.cluster.nic_bytes_per_second().min())
        return costs._replace(copy=costs.copy + np.where(of_family, 0.25 * slowest, 0.0))
    return costs


def _inputs(plans: PlanTable, population: Population, domain: Domain) -> TimelineInputs:
    computing = slowest_factors(domain, population.layouts)[population.layout]
    factors = computing * swap_slowdowns(domain, population, plans)
    return TimelineInputs(*arguments(plans, domain), factors, factors - computing)


def _simulate(inputs: TimelineInputs) -> TimelineTimes:
    messages = inputs.messages
    start, flowing, done = np.empty((3, len(messages.operation)))
    seconds = np.empty(len(messages.first) - 1)
    play(
        messages,
        inputs.costs,
        inputs.compute,
        inputs.in_flight,
        inputs.factors,
        start,
        flowing,
        done,
        seconds,
    )
    return TimelineTimes(seconds, start, flowing, done)
