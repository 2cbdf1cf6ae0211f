"""Graphs, clusters, strategies and trained simulators: what is stored, beside what is bundled."""

from functools import cache
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import ClusterRow, GraphRow, SimulatorRow, StrategyRow
from autosync.api.engine.registry import SIMULATORS
from autosync.api.engine.simulator_store import NAME_OF_VERSION, list_simulators
from autosync.api.views.paging import SortKey, one_page, read_cursor, sorted_page
from autosync.api.views.schemas import (
    BundledModel,
    Clusters,
    ClusterSummary,
    Graphs,
    GraphSummary,
    Simulators,
    TrainedSimulator,
)
from autosync.cluster_file import bundled_clusters
from autosync.models import BUNDLED

Row = TypeVar("Row", GraphRow, ClusterRow)

GRAPH_SORTS = {
    "created": SortKey(GraphRow.created_at),
    "parameters": SortKey(GraphRow.parameters, int),
}
CLUSTER_SORTS = {
    "created": SortKey(ClusterRow.created_at),
    "world_size": SortKey(ClusterRow.world_size, int),
}


def graphs(
    session: Session, limit: int, cursor: str | None = None, sort: str = "-created"
) -> Graphs:
    """Stored graphs, and the bundled models. cursor: `next` of the page before. sort: one of
    GRAPH_SORTS, with `-` for the largest first.

    Raises:
        InvalidInput: there is no such sort, or the cursor is none of this list.
    """
    rows, following = sorted_page(
        session, select(GraphRow), GRAPH_SORTS, sort, GraphRow.id, limit, cursor
    )
    return Graphs(
        items=[GraphSummary.model_validate(row) for row, *_ in rows],
        bundled=list(bundled_models()),
        next=following,
    )


def clusters(
    session: Session, limit: int, cursor: str | None = None, sort: str = "-created"
) -> Clusters:
    """Stored clusters, and the bundled ones; as `graphs`, in one of CLUSTER_SORTS."""
    rows, following = sorted_page(
        session, select(ClusterRow), CLUSTER_SORTS, sort, ClusterRow.id, limit, cursor
    )
    return Clusters(
        items=[ClusterSummary.model_validate(row) for row, *_ in rows],
        bundled=list(bundled_clusters()),
        next=following,
    )


def offered_graphs(session: Session, limit: int, chosen: str) -> Graphs:
    """The newest ones, and that of the id `chosen` wherever it stands."""
    found = graphs(session, limit)
    row = _unlisted(session, GraphRow, chosen, [each.id for each in found.items])
    more = [] if row is None else [GraphSummary.model_validate(row)]
    return found.model_copy(update={"items": [*found.items, *more]})


def offered_clusters(session: Session, limit: int, chosen: str) -> Clusters:
    """As `offered_graphs`."""
    found = clusters(session, limit)
    row = _unlisted(session, ClusterRow, chosen, [each.id for each in found.items])
    more = [] if row is None else [ClusterSummary.model_validate(row)]
    return found.model_copy(update={"items": [*found.items, *more]})


def _unlisted(session: Session, table: type[Row], key: str, listed: list[str]) -> Row | None:
    """The row of this id, where there is one and the list has it not."""
    return None if key in listed or not key.isalnum() else session.get(table, key)


@cache
def bundled_models() -> tuple[BundledModel, ...]:
    return tuple(BundledModel.model_validate(spec) for spec in BUNDLED.values())


def every_simulator(session: Session) -> Simulators:
    """All trained ones by name, and the bundled ones."""
    rows = list_simulators(session, None)
    items = [TrainedSimulator.model_validate(row) for row in rows]
    return Simulators(items=items, bundled=list(SIMULATORS), next=None)


def simulators(session: Session, limit: int, cursor: str | None = None) -> Simulators:
    """Trained simulators by name, and the bundled ones; as `graphs`."""
    after = read_cursor(cursor, str)[0] if cursor else ""
    rows, following = one_page(
        list_simulators(session, limit + 1, after), limit, lambda row: (row.name,)
    )
    return Simulators(
        items=[TrainedSimulator.model_validate(row) for row in rows],
        bundled=list(SIMULATORS),
        next=following,
    )


def named_simulators(session: Session, limit: int) -> list[TrainedSimulator]:
    """Trained simulators but the versions, which have a list of their own; by name."""
    of_a_version = SimulatorRow.name.startswith(NAME_OF_VERSION.format(""), autoescape=True)
    query = select(SimulatorRow).where(~of_a_version).order_by(SimulatorRow.name).limit(limit)
    return [TrainedSimulator.model_validate(row) for row in session.scalars(query)]


def simulator(session: Session, name: str) -> TrainedSimulator:
    """One that was just stored."""
    return TrainedSimulator.model_validate(session.get_one(SimulatorRow, name))


def graph_document(session: Session, graph_id: str) -> str:
    """The graph as JSON; raises NotFound."""
    return stored(session, GraphRow, graph_id, "graph").document


def cluster_document(session: Session, cluster_id: str) -> str:
    """The cluster as JSON; raises NotFound."""
    return stored(session, ClusterRow, cluster_id, "cluster").document


def strategy_document(session: Session, strategy_id: str) -> str:
    """A strategy that some tuning proposed, as JSON; raises NotFound."""
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    document = session.scalars(query).first() if strategy_id.isalnum() else None
    remedy = "GET /v1/tunings/{id}/strategies lists those of a tuning."
    return found(document, "strategy", strategy_id, remedy)
