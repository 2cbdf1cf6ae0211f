"""MG-WFBP: the merging of gradients whose last all-reduce ends earliest (Shi et al. 2019)."""

import numpy as np

from autosync.codes import Op
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.plan.compiler_arrays import ALL_RANKS, team_table
from autosync.search.designs.building_blocks import uncut
from autosync.simulator.cost.network import network_of
from autosync.strategy import (
    AllGather,
    AllReduce,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
)


def mg_wfbp_strategy(domain: Domain) -> Strategy:
    """All-reduces in the order of readiness, neighbours merged where that ends the last one sooner.

    The published rule merges a gradient with the next while the startup it saves exceeds the wait.
    Here the same optimum is found exactly: a message of the gradients i to j starts once gradient
    j and the link are there, and takes a startup and its bytes; a dynamic program over the last
    message's first gradient gives the least end, with the fewest messages among equals. Neighbours
    of another type are not merged; sparse gradients are gathered one by one.
    """
    first_of = _best_cuts(domain)
    order = domain.graph.gradient_order
    group, stop = {}, len(order)
    while stop > 0:
        for position in range(first_of[stop], stop):
            group[order[position]] = stop
        stop = first_of[stop]
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        kind = AllGather if variable.sparse else AllReduce
        shard: Synchronizer = kind(group[index])
        choices.append(VariableChoice(variable.name, uncut(variable), (shard,)))
    return Strategy(tuple(choices), even_replicas(domain.world_size)).canonical()


def _best_cuts(domain: Domain) -> list[int]:
    """For each count of gradients, in ready order, where the last message of the best merging of
    so many begins."""
    variables = [domain.graph.variables[index] for index in domain.graph.gradient_order]
    costs = network_of(domain.cluster, team_table(domain, ()))
    operation = [Op.SPARSE_ALL_GATHER if each.sparse else Op.ALL_REDUCE for each in variables]
    kind = costs.kind_of(operation, ALL_RANKS)
    message_seconds = costs.message_seconds[kind]
    seconds_per_byte = (
        costs.seconds_per_byte + costs.copy_seconds_per_byte + costs.host_seconds_per_byte
    )[kind]
    # of a sparse gradient whole rows travel
    share = [each.touched_rows / each.shape[0] if each.sparse else 1.0 for each in variables]
    size_bytes = np.array([each.size_bytes for each in variables]) * share
    sent = np.concatenate(([0.0], np.cumsum(size_bytes * seconds_per_byte)))
    ends, first_of, alike = np.zeros(len(variables) + 1), [0], 0
    for last, variable in enumerate(variables):
        if variable.sparse or last == 0 or not _merge(variable, variables[last - 1]):
            alike = last  # no message reaches further back
        begins = np.maximum(ends[alike : last + 1], domain.timing.ready_seconds[last])
        candidates = begins + message_seconds[last] + sent[last + 1] - sent[alike : last + 1]
        first_of.append(alike + int(candidates.argmin()))
        ends[last + 1] = candidates.min()
    return first_of


def _merge(one: Variable, other: Variable) -> bool:
    return (one.dtype, one.sparse) == (other.dtype, other.sparse)
