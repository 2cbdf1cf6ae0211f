"""Graphs, clusters, strategies and trained simulators: what is stored, beside what is bundled."""

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import ClusterRow, GraphRow, SimulatorRow, StrategyRow
from autosync.api.engine.registry import SIMULATORS
from autosync.api.engine.simulator_store import list_simulators
from autosync.api.engine.simulator_versions import NAME_OF_VERSION
from autosync.api.views.cursors import one_page, read_cursor
from autosync.api.views.document_schemas import (
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

Document = TypeVar("Document", GraphRow, ClusterRow)


def graphs(session: Session, limit: int, cursor: str | None = None) -> Graphs:
    """Stored graphs, the newest first, and the bundled models. cursor: `next` of the page before.

    Raises:
        InvalidInput: the cursor is none of this list.
    """
    rows, following = _newest(session, GraphRow, limit, cursor)
    return Graphs(
        items=[GraphSummary.model_validate(row) for row in rows],
        bundled=[BundledModel.model_validate(spec) for spec in BUNDLED.values()],
        next=following,
    )


def clusters(session: Session, limit: int, cursor: str | None = None) -> Clusters:
    """Stored clusters, the newest first, and the bundled ones; as `graphs`."""
    rows, following = _newest(session, ClusterRow, limit, cursor)
    return Clusters(
        items=[ClusterSummary.model_validate(row) for row in rows],
        bundled=list(bundled_clusters()),
        next=following,
    )


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


def _newest(
    session: Session, table: type[Document], limit: int, cursor: str | None
) -> tuple[Sequence[Document], str | None]:
    key = (table.created_at, table.id)
    query = select(table).order_by(*(column.desc() for column in key)).limit(limit + 1)
    if cursor:
        query = query.where(tuple_(*key) < read_cursor(cursor, float, str))
    return one_page(session.scalars(query).all(), limit, lambda row: (row.created_at, row.id))


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
