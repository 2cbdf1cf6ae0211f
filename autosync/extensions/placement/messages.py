"""Messages of variables that live on some of the ranks only: an all-reduce among these."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Channel
from autosync.domain import Domain
from autosync.extensions.placement.document import Placement, placed_module
from autosync.plan.plan_table import MESSAGE_COLUMNS, PlanTable, Teams
from autosync.population import Population


def with_messages(plans: PlanTable, population: Population, domain: Domain) -> PlanTable:
    """The same plans, those with placed modules with the ranks that synchronize each variable.

    Messages of variables that some ranks do not hold come behind all others, on a channel of their
    own: so the others have the same place in the plan on every rank, and none waits for a message
    that some rank has no part in. Where one rank holds a variable, its message has a team of one,
    and nothing travels.
    """
    added: list[Teams] = []
    columns = {name: getattr(plans, name).copy() for name in MESSAGE_COLUMNS}
    order = np.arange(plans.messages)
    for index in np.flatnonzero(population.carrying(Placement)).tolist():
        rows = np.arange(int(plans.first[index]), int(plans.first[index + 1]))
        team_of_row = _teams_of_rows(plans, population, domain, index, rows, added)
        apart = team_of_row >= 0
        columns["ranks"][rows[apart]] = team_of_row[apart]
        columns["channel"][rows[apart]] = Channel.LOCAL_REDUCE
        order[rows] = np.concatenate((rows[~apart], rows[apart]))
    moved = {name: values[order] for name, values in columns.items()}
    moved["after"] = _followed(moved["after"], order, plans)
    return replace(plans, teams=plans.teams.with_added(added), **moved)


def _teams_of_rows(
    plans: PlanTable,
    population: Population,
    domain: Domain,
    index: int,
    rows: NDArray[np.int64],
    added: list[Teams],
) -> NDArray[np.int64]:
    """Of each message, the index of the ranks that hold its variables once `added`, to which they
    are appended, follows the plans' teams; -1 where all ranks do."""
    placement = population.entry(index, Placement)
    assert placement is not None
    known: dict[tuple[int, ...], int] = {}
    found = np.full(len(rows), -1, dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        piece = int(plans.bucket_first[plans.bucket[row]])
        variable = population.variable[plans.piece_row[piece] + int(population.first[index])]
        placed = placed_module(placement.modules, domain.graph.variables[int(variable)].name)
        if placed is None or len(placed.ranks) == domain.world_size:
            continue
        if placed.ranks not in known:
            known[placed.ranks] = len(plans.teams) + len(added)
            added.append((placed.ranks,))
        found[place] = known[placed.ranks]
    return found


def _followed(after: NDArray[Any], order: NDArray[np.int64], plans: PlanTable) -> NDArray[np.int64]:
    """`after` of moved messages, by the new places of what they wait for."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.repeat(plans.first[:-1], np.diff(plans.first))
    awaited = np.where(after >= 0, after + first, first)
    result: NDArray[np.int64] = np.where(after >= 0, place[awaited] - first, -1)
    return result
