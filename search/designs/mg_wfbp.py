"""MG-WFBP: a gradient waits for the next one while that costs less than a startup."""

from autosync.codes import Op
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.plan.plan_table import ALL_RANKS, team_table
from autosync.search.designs.building_blocks import all_reduced
from autosync.search.designs.wire_estimates import ready_seconds
from autosync.simulator.cost.network import network_of
from autosync.strategy import Strategy


def mg_wfbp_strategy(domain: Domain) -> Strategy:
    """All-reduces in the order of readiness, neighbours merged by the published rule (Shi, Chu and
    Li 2019, algorithm 1), which is greedy and no optimum.

    The method estimates an all-reduce of M bytes as a + b M, from all-reduces that it timed alone.
    In the order of readiness, what has been merged so far could begin when it is ready and the
    message before it has ended; if the next gradient is ready less than a later, it is merged as
    well. Overlapped transfers, stragglers and engines are not in that estimate. Neighbours of
    another type are not merged; sparse gradients are gathered one by one. A gradient is ready when
    the slowest rank has it.
    """
    order = domain.graph.gradient_order
    return all_reduced(domain, dict(zip(order, _merged(domain), strict=True)))


def _merged(domain: Domain) -> list[int]:
    """The number of the message of each gradient, in ready order."""
    variables = [domain.graph.variables[index] for index in domain.graph.gradient_order]
    ready = ready_seconds(domain)[list(domain.graph.gradient_order)]
    startup_seconds, seconds_per_byte = all_reduce_estimate(domain)
    groups, group, free_at, size_bytes = [0], 0, 0.0, variables[0].size_bytes
    for last, variable in enumerate(variables[1:]):
        begin = max(free_at, float(ready[last]))
        wait = float(ready[last + 1]) - begin
        if _alike(variable, variables[last]) and wait < startup_seconds:
            size_bytes += variable.size_bytes
        else:
            free_at = begin + startup_seconds + seconds_per_byte * size_bytes
            size_bytes = variable.size_bytes
            group += 1
        groups.append(group)
    return groups


def all_reduce_estimate(domain: Domain) -> tuple[float, float]:
    """a and b of a + b M: seconds of an all-reduce of M bytes among all ranks, by itself."""
    costs = network_of(domain.cluster, team_table(domain, ()))
    kind = int(costs.kind_of(Op.ALL_REDUCE, ALL_RANKS))
    a = costs.startup_seconds[kind] + costs.host_seconds[kind] + costs.link_seconds[kind]
    b = (
        costs.seconds_per_byte[kind]
        + costs.copy_seconds_per_byte[kind]
        + costs.host_seconds_per_byte[kind]
    )
    return float(a), float(b)


def _alike(one: Variable, other: Variable) -> bool:
    """Whether one message may carry both gradients."""
    return one.dtype == other.dtype and not one.sparse and not other.sparse
