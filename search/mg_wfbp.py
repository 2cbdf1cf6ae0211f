"""MG-WFBP: the merging of gradients whose last all-reduce ends earliest (Shi et al. 2019)."""

import numpy as np

from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.plan.tables import ALL_RANKS, team_table
from autosync.strategy import AllReduce, Strategy, VariableChoice, even_replicas
from search.building import uncut
from simulator.network import network


def mg_wfbp(domain: Domain) -> Strategy:
    """All-reduces in the order of readiness, neighbours merged where that ends the last one sooner.

    The published rule merges a gradient with the next while the startup it saves exceeds the wait.
    Here the same optimum is found exactly: a message of the gradients i to j starts once gradient
    j and the link are there, and takes a startup and its bytes; a dynamic program over the last
    message's first gradient gives the least end, with the fewest messages among equals.

    Raises:
        NotSupported: some gradient is sparse, or types differ, so that neighbours cannot merge.
    """
    kinds = {(variable.dtype, variable.sparse) for variable in domain.graph.variables}
    if kinds != {(domain.graph.variables[0].dtype, False)}:
        raise NotSupported(
            f"MG-WFBP merges dense gradients of one type; graph {domain.graph.name!r} has others.",
            thing="MG-WFBP",
            value=sorted(kinds),
            remedy="Use ddp, or all_reduce_25mb.",
        )
    first_of = _best_cuts(domain)
    order = domain.graph.gradient_order
    group, stop = {}, len(order)
    while stop > 0:
        for position in range(first_of[stop], stop):
            group[order[position]] = stop
        stop = first_of[stop]
    choices = tuple(
        VariableChoice(variable.name, uncut(variable), (AllReduce(group[index]),))
        for index, variable in enumerate(domain.graph.variables)
    )
    return Strategy(choices, even_replicas(domain.world_size)).canonical()


def _best_cuts(domain: Domain) -> list[int]:
    """For each count of gradients, in ready order, where the last message of the best merging of
    so many begins."""
    costs = network(domain.cluster, team_table(domain, ()))
    kind = int(costs.kind[Op.ALL_REDUCE, ALL_RANKS, 0])
    startup = float(costs.startup_seconds[kind])
    order = np.array(domain.graph.gradient_order)
    seconds = domain.variables.size_bytes[order] * float(costs.seconds_per_byte[kind])
    sent = np.concatenate(([0.0], np.cumsum(seconds)))
    ends, first_of = np.zeros(len(order) + 1), [0]
    for count in range(1, len(order) + 1):
        begins = np.maximum(ends[:count], domain.timing.ready_seconds[count - 1])
        candidates = begins + startup + sent[count] - sent[:count]
        first_of.append(int(candidates.argmin()))
        ends[count] = candidates.min()
    return first_of
