"""Strategies whose messages are sent in an explicit order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autosync.domain import Domain
from autosync.strategy import (
    Partition,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    whole,
)


@dataclass(frozen=True, slots=True)
class OrderedMessage:
    """A message in the order of sending: elements of variables, by index, all alike."""

    synchronizer: Synchronizer
    elements: tuple[tuple[int, int], ...]


def strategy_of(domain: Domain, messages: Sequence[OrderedMessage]) -> Strategy:
    """The strategy of these messages, sent in their order and into the next forward pass.

    A variable's parts lie in it in the order of sending.
    """
    shards: dict[int, list[tuple[int, int]]] = {}
    for number, message in enumerate(messages):
        for index, length in message.elements:
            shards.setdefault(index, []).append((length, number))
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        parts = shards[index]
        lengths = tuple(length for length, _ in parts)
        partition = whole(variable.shape) if len(parts) == 1 else Partition(-1, lengths)
        synchronizers = tuple(
            replace(messages[number].synchronizer, group=number) for _, number in parts
        )
        choices.append(VariableChoice(variable.name, partition, synchronizers))
    replicas = even_replicas(domain.world_size)
    strategy = Strategy(tuple(choices), replicas, Schedule(overlap_forward=True))
    keys = [[number for _, number in shards[index]] for index in range(len(choices))]
    return ordered(strategy, keys).canonical()


def ordered(strategy: Strategy, keys: Sequence[Sequence[float]]) -> Strategy:
    """The strategy with its shards in the order of their keys, given variable by variable; equal
    keys in the order of the graph."""
    flat = [key for of_variable in keys for key in of_variable]
    places = sorted(range(len(flat)), key=flat.__getitem__)
    positions = [0] * len(flat)
    for position, place in enumerate(places):
        positions[place] = position
    schedule = replace(strategy.schedule, order="explicit", positions=tuple(positions))
    return replace(strategy, schedule=schedule)
