"""When the timeline has each message start and end, and how an iteration depends on constants.

The what-ifs are the timeline's sensitivities: by how much a strategy's time grows if a constant of
the cluster (the startup of a kind of message, the copies of an engine, a link) is larger than
believed. A weight on such a column is a statement about the cluster, not about a strategy, so
it holds for strategies, models and clusters that were never measured. Compute is
as long as the timeline has it: with what extensions add.

Raise InvalidStrategy, as the timeline, for a budget that holds no training step.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.cost.compute_time import slowest_factors
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.extension_prediction import slowdowns
from autosync.simulator.timeline.timeline_arrays import CostArrays
from autosync.simulator.timeline.timeline_simulator import (
    TimelineInputs,
    TimelineTimes,
    timeline_inputs,
)

F64 = NDArray[np.float64]

FAMILIES: dict[str, tuple[Op, ...]] = {
    "all_reduce": (Op.ALL_REDUCE,),
    "tree": (Op.REDUCE, Op.BROADCAST),
    "halves": (Op.REDUCE_SCATTER, Op.ALL_GATHER),
    "server": (Op.PUSH, Op.PULL, Op.SPARSE_PUSH, Op.SPARSE_PULL),
    "rows": (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER),
}
"""Kinds of message whose constants are likely to err together."""

WHAT_IFS = (
    "compute",
    "bandwidth",
    "engine",
    "one_in_flight",
    *(f"startup_{family}" for family in FAMILIES),
    *(f"copies_{family}" for family in FAMILIES),
)
"""Compute 10 % longer; links 10 % slower; an issue that costs half a startup; collectives one by
one; half as much startup again; copies that cost a quarter of the slowest link's time."""


def timeline_times(plans: PlanTable, population: Population, domain: Domain) -> TimelineTimes:
    """The timeline's iteration of each strategy, and its times of every message."""
    inputs, computing, waits = _inputs(plans, population, domain)
    return inputs.play(computing * waits)


def what_ifs(plans: PlanTable, population: Population, domain: Domain, seconds: F64) -> F64:
    """A `(strategies, len(WHAT_IFS))` array: log of each what-if's time over `seconds`, which
    are the timeline's own. A strategy without any message that another cost is of takes as long as
    it did, and is not played again."""
    timeline, computing, waits = _inputs(plans, population, domain)
    network, before = network_of(domain.cluster, plans.teams), computing * waits
    occurs = _kinds_of_strategies(plans, network)
    found = np.zeros((len(plans), len(WHAT_IFS)))
    for column, name in enumerate(WHAT_IFS):
        family = FAMILIES.get(name.partition("_")[2], ())
        costs = _changed(name, timeline.costs, np.isin(network.operations, family), domain)
        factors, chosen = before, occurs[:, _differ(costs, timeline.costs)].any(axis=1)
        if name == "compute":  # waits for transfers to host memory stay as they are
            factors = before + 0.1 * computing
            chosen = factors != before
        other = replace(timeline, costs=costs)
        times = other.play(factors, np.flatnonzero(chosen), seconds.copy())
        found[:, column] = np.log(times.seconds / seconds)
    return found


def _inputs(
    plans: PlanTable, population: Population, domain: Domain
) -> tuple[TimelineInputs, F64, F64]:
    """What the timeline plays; by which compute of a strategy's slowest replica is longer than the
    profile's, and how many times longer again it is by waits for extensions, `(n,)` each."""
    computing = slowest_factors(domain, population.layouts)[population.layout]
    return timeline_inputs(plans, domain), computing, slowdowns(domain, population, plans)


def _kinds_of_strategies(plans: PlanTable, network: Network) -> NDArray[np.bool_]:
    """`(strategies, kinds)`: whether a strategy has a message of a kind."""
    occurs = np.zeros((len(plans), len(network.operations)), dtype=np.bool_)
    owner = np.repeat(np.arange(len(plans)), np.diff(plans.first))
    occurs[owner, network.classes_of(plans)] = True
    return occurs


def _differ(one: CostArrays, other: CostArrays) -> NDArray[np.bool_]:
    """`(kinds,)`: whose messages' own costs are not the same; links are alike in both."""
    differs = np.zeros(len(one.startup), dtype=np.bool_)
    for field in ("startup", "copy", "per_byte", "in_flight", "host"):
        differs |= getattr(one, field) != getattr(other, field)
    return differs


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
