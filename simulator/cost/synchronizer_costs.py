"""Every synchronizer that a variable may have, and how long each link then carries it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
class SynchronizerCosts:
    """Variables of one class cost the same per byte under each synchronizer; C classes, S
    synchronizers.

    class_of i64[V]: of each variable. load f64[C, S, R]: seconds per byte of the variable that
    each resource is held; infinite where a synchronizer does not suit the class.
    """

    class_of: NDArray[np.int64]
    load: NDArray[np.float64]


def costs_of_synchronizers(domain: Domain, allowed: Allowed) -> SynchronizerCosts:
    """Of every allowed synchronizer, as the compiler turns it into messages; of uncut variables,
    since cuts save nothing."""
    synchronizers = list(_synchronizers(domain, allowed))
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

    suits: `(V, S)`.
    """
    variables = len(suits)
    plans = compile_plans_fast(encode(strategies, domain), domain)
    costs = network_of(domain.cluster, plans.teams)
    synchronizer = np.repeat(np.arange(len(strategies)), np.diff(plans.first))
    variable = plans.piece_row[plans.bucket_first[plans.bucket]]
    kind = costs.kinds_of(plans)
    ratio = plans.wire_bytes / domain.variables.size_bytes[variable]
    signatures: list[tuple[object, ...]] = [() for _ in range(variables)]
    for v in range(variables):
        mine = variable == v
        signatures[v] = (suits[v].tobytes(), ratio[mine].tobytes(), kind[mine].tobytes())
    numbers = {signature: c for c, signature in enumerate(dict.fromkeys(signatures))}
    class_of = np.array([numbers[signature] for signature in signatures])
    load = np.zeros((len(numbers), len(strategies), costs.load.shape[1]))
    for c in range(len(numbers)):
        first = int(np.flatnonzero(class_of == c)[0])
        mine = variable == first
        np.add.at(load[c], synchronizer[mine], ratio[mine, None] * costs.load[kind[mine]])
        load[c][~suits[first]] = np.inf
    return SynchronizerCosts(class_of, load)


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


def _suits(synchronizer: Synchronizer, variable: Variable) -> bool:
    match synchronizer:
        case AllGather():
            return variable.sparse
        case Factors():
            return variable.factor_rows > 0
        case _:
            return True
