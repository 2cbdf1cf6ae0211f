"""Owners by the time that links are held: a slow node's link carries all that it does not own."""

import numpy as np

from autosync.domain import Domain
from autosync.search.designs.building_blocks import (
    Choices,
    assemble,
    everything,
    into_pieces,
    returning_gradients,
)
from autosync.search.designs.known_designs import AT_ONCE, OVERLAPPED
from autosync.search.domain_facts import owner_loads, pulled_bytes, sent_bytes
from autosync.strategy import ParameterServer, Strategy, VariableChoice
from autosync.units import MIB


def ps_least_busy_link(domain: Domain) -> Strategy:
    """4 MiB pieces, merged by owner."""
    return assemble(domain, least_busy_link(domain), schedule=OVERLAPPED, limit_bytes=5 * MIB)


def byteps_least_busy_link(domain: Domain) -> Strategy:
    """The same, but owners return average gradients, which need not wait for `step()`."""
    choices = returning_gradients(domain, least_busy_link(domain))
    return assemble(domain, choices, schedule=AT_ONCE, limit_bytes=5 * MIB)


def least_busy_link(domain: Domain) -> Choices:
    """The largest pieces first, each to the rank that leaves the busiest link least busy.

    In proportion to bandwidth a slow node owns less, but sends and fetches all it does not own, as
    every node does: with P nodes a link of rate b is held for (1 + (P - 2) x) / b by a share x.
    So the slowest may best own nothing. Of equal choices the one with the least sum of squares.
    """
    sent, pulled = sent_bytes(domain), pulled_bytes(domain)
    loads = {sparse: owner_loads(domain, sparse) for sparse in (False, True)}
    cut = into_pieces(4 * MIB)
    partitions = {index: cut(domain.graph.variables[index]) for index in everything(domain)}
    pieces = [
        (length / sum(partition.lengths), index, part)
        for index, partition in partitions.items()
        for part, length in enumerate(partition.lengths)
    ]
    pieces.sort(key=lambda piece: (-piece[0] * sent[piece[1]], piece[1:]))
    held = np.zeros(loads[False][0].shape[1])
    owners = {index: [0] * len(partition.lengths) for index, partition in partitions.items()}
    for share, index, part in pieces:
        push, pull = loads[bool(domain.variables.sparse[index])]
        after = held + share * (sent[index] * push + pulled[index] * pull)
        busiest = after.max(axis=1)
        best = np.flatnonzero(busiest <= busiest.min() * (1 + 1e-9))
        owner = int(best[np.argmin((after[best] ** 2).sum(axis=1))])
        owners[index][part], held = owner, after[owner]
    return {
        index: VariableChoice(
            domain.graph.variables[index].name,
            partition,
            tuple(ParameterServer(owner, 0) for owner in owners[index]),
        )
        for index, partition in partitions.items()
    }
