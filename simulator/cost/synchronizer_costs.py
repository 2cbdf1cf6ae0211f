"""Every way in which a variable may be synchronized, and how long each link carries it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.allowed import Allowed
from autosync.domain import Domain
from autosync.graph import Variable
from autosync.population import encode
from autosync.simulator.cost.network import network_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import (
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
class Ways:
    """Variables of one class are synchronized at the same cost per byte; C classes, W ways.

    of i64[V]: class of each variable. load f64[C, W, R]: seconds per byte of the variable that
    each resource is held; infinite where a way does not suit the class.
    """

    of: NDArray[np.int64]
    load: NDArray[np.float64]


def ways_of(domain: Domain, allowed: Allowed) -> Ways:
    """The ways as the compiler turns them into messages, of uncut variables: cuts add no saving."""
    synchronizers = list(_synchronizers(domain, allowed))
    suits = np.array(
        [[_suits(way, variable) for way in synchronizers] for variable in domain.graph.variables]
    )
    plain = AllReduce(0)
    strategies = [
        Strategy(
            tuple(
                VariableChoice(
                    variable.name,
                    whole(variable.shape),
                    (_grouped(way if suits[v, w] else plain, v),),
                )
                for v, variable in enumerate(domain.graph.variables)
            ),
            even_replicas(domain.world_size),
        )
        for w, way in enumerate(synchronizers)
    ]
    return _classes(domain, strategies, suits)


def _classes(domain: Domain, strategies: list[Strategy], suits: NDArray[np.bool_]) -> Ways:
    """Compiles one strategy per way and reads each variable's messages."""
    variables = len(suits)
    plans = compile_plans_fast(encode(strategies, domain), domain)
    costs = network_of(domain.cluster, plans.teams)
    way = np.repeat(np.arange(len(strategies)), np.diff(plans.first))
    variable = plans.piece_row[plans.bucket_first[plans.bucket]]
    kind = costs.kind[plans.operation, plans.ranks, plans.root.astype(np.int64) + 1]
    ratio = plans.wire_bytes / domain.variables.size_bytes[variable]
    signatures: list[tuple[object, ...]] = [() for _ in range(variables)]
    for v in range(variables):
        mine = variable == v
        signatures[v] = (suits[v].tobytes(), ratio[mine].tobytes(), kind[mine].tobytes())
    numbers = {signature: c for c, signature in enumerate(dict.fromkeys(signatures))}
    of = np.array([numbers[signature] for signature in signatures])
    load = np.zeros((len(numbers), len(strategies), costs.load.shape[1]))
    for c in range(len(numbers)):
        first = int(np.flatnonzero(of == c)[0])
        mine = variable == first
        np.add.at(load[c], way[mine], ratio[mine, None] * costs.load[kind[mine]])
        load[c][~suits[first]] = np.inf
    return Ways(of, load)


def _synchronizers(domain: Domain, allowed: Allowed) -> Iterator[Synchronizer]:
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
            for server in range(domain.cluster.servers):
                for hierarchical in hierarchies:
                    yield ParameterServer(server, 0, hierarchical, encoding)


def _suits(way: Synchronizer, variable: Variable) -> bool:
    match way:
        case AllGather():
            return variable.sparse
        case Factors():
            return variable.factor_rows > 0
        case _:
            return True


def _grouped(way: Synchronizer, group: int) -> Synchronizer:
    match way:
        case ParameterServer():
            return ParameterServer(way.server, group, way.hierarchical, way.encoding)
        case AllReduce():
            return AllReduce(group, way.algorithm, way.device_order, way.encoding)
        case ReduceScatter():
            return ReduceScatter(group, way.sharded_update, way.encoding)
        case AllGather():
            return AllGather(group)
        case Factors():
            return Factors(group)
