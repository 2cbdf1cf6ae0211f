"""What schedules are computed from: when gradients exist, how long messages hold the wire, and what
is still computed once they have arrived. Estimates: the timeline plays what follows from them."""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.domain import Domain
from autosync.plan.plan_table import ALL_RANKS, LEADERS, NODE_TEAMS, team_table
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.network import network_of
from autosync.strategy import AllGather, AllReduce, Factors, Synchronizer, even_replicas

F64 = NDArray[np.float64]

Stages = tuple[tuple[Op, int], ...]
"""Operation and teams of each message of a chain."""

RING: Stages = ((Op.ALL_REDUCE, ALL_RANKS),)
HIERARCHICAL: Stages = (
    (Op.REDUCE, NODE_TEAMS),
    (Op.ALL_REDUCE, LEADERS),
    (Op.BROADCAST, NODE_TEAMS),
)
GATHERED: Stages = ((Op.SPARSE_ALL_GATHER, ALL_RANKS),)
FACTORED: Stages = ((Op.FACTOR_ALL_GATHER, ALL_RANKS),)


def ready_seconds(domain: Domain) -> F64:
    """When the slowest rank has each gradient, `(variables,)` from the start of backward."""
    seconds: F64 = domain.timing.ready_seconds[domain.variables.ready] * slowest_factor(domain)
    return seconds


def tail_seconds(domain: Domain) -> F64:
    """What the slowest rank still computes of the next forward pass from each variable's first use
    on, `(variables,)`: the longest path behind it, as one device computes one operation at a time.
    """
    timing = domain.timing
    used = timing.forward_start[domain.variables.first_use]
    seconds: F64 = (timing.forward_seconds - used) * slowest_factor(domain)
    return seconds


def slowest_factor(domain: Domain) -> float:
    """Of an even share, over the profile's seconds."""
    return float(compute_factors(domain, even_replicas(domain.world_size)).max())


def wire_seconds(domain: Domain, synchronizer: Synchronizer, size_bytes: F64) -> F64:
    """How long messages of these sizes keep the wire from others, `(messages,)`: all-reduces along
    a ring or hierarchical, gathered rows or factors.

    A linear model as PACE fits one. Messages follow each other through the stages of a hierarchy,
    so the slowest stage counts; all do where a rank runs one message at a time. Where several are
    in flight, the startup of one hides behind the bytes of another.
    """
    startup, per_byte, link, link_byte = _stage_costs(domain, synchronizer, size_bytes)
    alone = startup + per_byte * size_bytes
    held = link + link_byte * size_bytes
    in_flight = network_of(domain.cluster, team_table(domain, ())).in_flight
    stages = np.maximum(alone / in_flight, held)
    in_turn = backend_of(domain.cluster).one_order
    seconds: F64 = stages.sum(axis=0) if in_turn else stages.max(axis=0)
    return seconds


def startup_seconds(domain: Domain, synchronizer: AllReduce) -> float:
    """What one message more costs the wire."""
    return float(wire_seconds(domain, synchronizer, np.zeros(1))[0])


def _stage_costs(
    domain: Domain, synchronizer: Synchronizer, size_bytes: F64
) -> tuple[F64, F64, F64, F64]:
    """Seconds of messages alone, without bytes and a byte, then those of them for which they hold
    their slowest link; of each stage, `(stages, messages)`."""
    network = network_of(domain.cluster, team_table(domain, ()))
    stages = RING
    if isinstance(synchronizer, AllGather):
        stages = GATHERED
    elif isinstance(synchronizer, Factors):
        stages = FACTORED
    elif isinstance(synchronizer, AllReduce) and synchronizer.algorithm == "hierarchical":
        alone = sum(node.ranks > 0 for node in domain.cluster.nodes) == 1
        stages = tuple(stage for stage in HIERARCHICAL if not (alone and stage[1] == LEADERS))
    kinds = np.array([network.class_of(*stage, -1, size_bytes) for stage in stages])
    per_byte = network.copy_seconds_per_byte + network.host_seconds_per_byte
    return (
        (network.message_seconds + network.link_seconds)[kinds],
        (per_byte + network.seconds_per_byte)[kinds],
        network.link_seconds[kinds],
        network.seconds_per_byte[kinds],
    )


def all_reduce_estimate(domain: Domain) -> tuple[float, float]:
    """a and b of a + b M: seconds of an all-reduce of M bytes among all ranks, by itself. Where it
    costs more than one line by its bytes: the line through the model's median variable and all
    of its variables together."""
    costs = network_of(domain.cluster, team_table(domain, ()))
    size_bytes = domain.variables.size_bytes
    ends = np.array([np.median(size_bytes), size_bytes.sum()])
    kind = costs.class_of(Op.ALL_REDUCE, ALL_RANKS, -1, ends)
    a = costs.startup_seconds[kind] + costs.host_seconds[kind] + costs.link_seconds[kind]
    b = (
        costs.seconds_per_byte[kind]
        + costs.copy_seconds_per_byte[kind]
        + costs.host_seconds_per_byte[kind]
    )
    if kind[0] == kind[1]:
        return float(a[0]), float(b[0])
    small, large = a + b * ends
    slope = (large - small) / (ends[1] - ends[0])
    return float(max(0.0, small - slope * ends[0])), float(slope)
