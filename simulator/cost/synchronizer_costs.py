"""Every synchronizer that a variable may have, and how long each link then carries it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.allowed import Allowed
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.plan.plan_table import ALL_RANKS, FIRST_SERVER, NODE_TEAMS
from autosync.population import encode
from autosync.simulator.cost.link_resources import alike_loads
from autosync.simulator.cost.network import network_of
from autosync.simulator.cost.network_arrays import Network
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import (
    EXACT,
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    ReduceScatter,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    whole,
)


@dataclass(frozen=True, slots=True)
class SynchronizerCosts:
    """Variables of one class cost the same per byte under each synchronizer; C classes, S
    synchronizers, those of alike servers once, R resources, alike ones once.

    class_of i64[V]: of each variable. load f64[C, S, R]: seconds per byte of the variable that
    each resource is held, the mean of alike ones; infinite where a synchronizer does not suit the
    class.
    """

    class_of: NDArray[np.int64]
    load: NDArray[np.float64]


def costs_of_synchronizers(domain: Domain, allowed: Allowed) -> SynchronizerCosts:
    """Of every allowed synchronizer, as the compiler turns it into messages; of uncut variables,
    since cuts save nothing."""
    synchronizers = list(_synchronizers(allowed))
    suits = np.array(
        [
            [_suits(synchronizer, variable) for synchronizer in synchronizers]
            for variable in domain.graph.variables
        ]
    )
    strategies = [
        _strategy_of(domain, synchronizer, suits[:, place])
        for place, synchronizer in enumerate(synchronizers)
    ]
    return _classes(domain, strategies, suits)


def _strategy_of(domain: Domain, synchronizer: Synchronizer, suits: NDArray[np.bool_]) -> Strategy:
    """Every variable alone under the synchronizer; those it does not suit by all-reduce.

    suits: `(V,)`.
    """
    choices = tuple(
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (replace(synchronizer if suited else AllReduce(0), group=group),),
        )
        for group, (variable, suited) in enumerate(zip(domain.graph.variables, suits, strict=True))
    )
    return Strategy(choices, even_replicas(domain.world_size))


def _classes(
    domain: Domain, strategies: list[Strategy], suits: NDArray[np.bool_]
) -> SynchronizerCosts:
    """Compiles one strategy per synchronizer and reads each variable's messages.

    suits: `(V, S)`, of synchronizers of which the first server's stand for all servers'.
    """
    plans = compile_plans_fast(encode(strategies, domain), domain)
    costs = network_of(domain.cluster, plans.teams)
    synchronizer = np.repeat(np.arange(len(strategies)), np.diff(plans.first))
    variable = plans.piece_row[plans.bucket_first[plans.bucket]]
    message_class = costs.class_of(plans.operation, plans.ranks, plans.root)
    ratio = plans.wire_bytes / domain.variables.size_bytes[variable]
    order = np.argsort(variable, kind="stable")
    ends = np.cumsum(np.bincount(variable, minlength=len(suits)))
    messages_of = np.split(order, ends[:-1])
    signatures = [
        (suits[v].tobytes(), ratio[mine].tobytes(), message_class[mine].tobytes())
        for v, mine in enumerate(messages_of)
    ]
    numbers = {signature: c for c, signature in enumerate(dict.fromkeys(signatures))}
    class_of = np.array([numbers[signature] for signature in signatures])
    load_of = _loads_of_classes(domain, costs, message_class)
    height = np.ones(len(strategies), dtype=np.int64)
    np.maximum.at(height, synchronizer, [len(load_of[each]) for each in message_class.tolist()])
    row = np.concatenate([[0], np.cumsum(height)])
    resources = load_of[int(message_class[0])].shape[1]
    load = np.zeros((len(numbers), row[-1], resources))
    for c in range(len(numbers)):
        first = int(np.flatnonzero(class_of == c)[0])
        for message in messages_of[first].tolist():
            rows = slice(row[synchronizer[message]], row[synchronizer[message] + 1])
            load[c, rows] += ratio[message] * load_of[int(message_class[message])]
        load[c, np.repeat(~suits[first], height)] = np.inf
    return SynchronizerCosts(class_of, load)


def _loads_of_classes(
    domain: Domain, costs: Network, classes: NDArray[np.int32]
) -> dict[int, NDArray[np.float64]]:
    """Of each class of messages, over groups of alike resources: `(1, resources)`, or
    `(servers, resources)` of the first server's classes, over groups of alike servers."""
    load, servers = costs.least_load, np.arange(domain.cluster.servers)
    first: list[int] = []
    owned = []
    for operation in range(len(costs.message_class)):
        for team in (ALL_RANKS, NODE_TEAMS, FIRST_SERVER):
            message_class = int(costs.message_class[operation, team, 1]) if len(servers) else -1
            if message_class in classes and message_class >= 0:
                first.append(message_class)
                teams = team + servers if team == FIRST_SERVER else team
                owned.append(load[costs.class_of(operation, teams, servers)])
    plain = [
        message_class for message_class in np.unique(classes).tolist() if message_class not in first
    ]
    alike = alike_loads(load[plain], owned)
    return dict(zip(plain, alike.plain[:, None], strict=True)) | dict(
        zip(first, alike.owned, strict=True)
    )


def _synchronizers(allowed: Allowed) -> Iterator[Synchronizer]:
    """The first server stands for all."""
    hierarchies = (False, True) if allowed.hierarchical else (False,)
    yield AllGather(0)
    if allowed.factors:
        yield Factors(0)
    for encoding in allowed.encodings:
        if allowed.all_reduce:
            yield AllReduce(0, encoding=encoding)
            yield AllReduce(0, "tree", encoding=encoding)
            if allowed.hierarchical:
                yield AllReduce(0, "hierarchical", encoding=encoding)
        if allowed.reduce_scatter:
            yield ReduceScatter(0, encoding=encoding)
        if allowed.parameter_server:
            for hierarchical in hierarchies:
                yield ParameterServer(0, 0, hierarchical, encoding)
                if encoding != EXACT and not encoding.rank:  # sums return packed, values do not
                    yield ParameterServer(0, 0, hierarchical, encoding, returns_gradients=True)


def _suits(synchronizer: Synchronizer, variable: Variable) -> bool:
    match synchronizer:
        case AllGather():
            return variable.sparse
        case Factors():
            return variable.factor_rows > 0
        case _:
            return True
