"""Strategies that lag, in both forms, for the staleness that a space allows."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from autosync.domain import Domain
from autosync.search.designs.building_blocks import (
    assemble,
    collective,
    everything,
    into_pieces,
    owned,
)
from autosync.search.space import Space
from autosync.strategy import AllReduce, Strategy
from autosync.units import MIB


def lagging_designs(space: Space) -> Iterator[tuple[str, Callable[[Domain], Strategy]]]:
    """Names and builders. Messages are long: what they take is hidden, their number is not."""
    for staleness in sorted({*space.staleness} - {0}):
        yield f"pipelined_all_reduce_{staleness}", _lagging(pipelined_all_reduce, staleness)
        yield f"clocked_servers_{staleness}", _lagging(clocked_servers, staleness)


def pipelined_all_reduce(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0)), limit_bytes=25 * MIB)


def clocked_servers(domain: Domain) -> Strategy:
    """A message for each owner, so that its answer leaves while others are still asked."""
    choices = owned(domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True)
    return assemble(domain, choices, limit_bytes=25 * MIB)


def _lagging(build: Callable[[Domain], Strategy], staleness: int) -> Callable[[Domain], Strategy]:
    return lambda domain: replace(build(domain), staleness=staleness)
