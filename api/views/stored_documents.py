"""Graphs, clusters, strategies and trained simulators: what is stored, beside what is bundled."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import ClusterRow, GraphRow, SimulatorRow, StrategyRow
from autosync.api.engine.registry import SIMULATORS
from autosync.api.engine.simulator_store import list_simulators
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


def graphs(session: Session, limit: int, offset: int = 0) -> Graphs:
    """Stored graphs, the newest first, and the bundled models."""
    query = select(GraphRow).order_by(GraphRow.created_at.desc(), GraphRow.id)
    rows = session.scalars(query.limit(limit).offset(offset))
    return Graphs(
        items=[GraphSummary.model_validate(row) for row in rows],
        bundled=[BundledModel.model_validate(spec) for spec in BUNDLED.values()],
    )


def clusters(session: Session, limit: int, offset: int = 0) -> Clusters:
    """Stored clusters, the newest first, and the bundled ones."""
    query = select(ClusterRow).order_by(ClusterRow.created_at.desc(), ClusterRow.id)
    rows = session.scalars(query.limit(limit).offset(offset))
    return Clusters(
        items=[ClusterSummary.model_validate(row) for row in rows],
        bundled=list(bundled_clusters()),
    )


def simulators(session: Session, limit: int, offset: int = 0) -> Simulators:
    """Trained simulators by name, and the bundled ones."""
    rows = list_simulators(session, limit, offset)
    return Simulators(
        items=[TrainedSimulator.model_validate(row) for row in rows],
        bundled=list(SIMULATORS),
    )


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
