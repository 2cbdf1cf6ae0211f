"""Graphs, clusters and strategies: those that are stored and bundled, and a model in figures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_graph
from autosync.api.db.lookup import found, not_found, stored
from autosync.api.db.tables import ClusterRow, DomainRow, GraphRow, StrategyRow
from autosync.api.views.paging import SortKey, sorted_page
from autosync.api.views.schemas import BundledModel, Clusters, ClusterSummary, Graphs, GraphSummary
from autosync.api.views.tuning_schemas import Tuning
from autosync.bundled_data import data_file
from autosync.cluster import MessageCost
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.documents import adapter, from_json, to_json
from autosync.domain import Profile
from autosync.graph import ModelGraph, Operation, Variable
from autosync.models import BUNDLED, bundled, is_bundled

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
    session: Session,
    limit: int,
    cursor: str | None = None,
    sort: str = "-created",
    chosen: str = "",
) -> Graphs:
    """Graphs that were posted, and the bundled models. cursor: `next` of the page before. sort: one
    of GRAPH_SORTS, with `-` for the largest first. chosen: the id of one that is added where the
    page lacks it.

    Raises:
        InvalidInput: there is no such sort, or the cursor is of another list.
    """
    rows, following = _posted(session, GraphRow, GRAPH_SORTS, sort, limit, cursor, chosen)
    return Graphs(
        items=[GraphSummary.model_validate(row) for row in rows],
        bundled=list(_bundled_models()),
        next=following,
    )


def clusters(
    session: Session,
    limit: int,
    cursor: str | None = None,
    sort: str = "-created",
    chosen: str = "",
) -> Clusters:
    """Clusters that were posted, and the bundled ones; as `graphs`, in one of CLUSTER_SORTS."""
    rows, following = _posted(session, ClusterRow, CLUSTER_SORTS, sort, limit, cursor, chosen)
    return Clusters(
        items=[ClusterSummary.model_validate(row) for row in rows],
        bundled=list(bundled_clusters()),
        next=following,
    )


def _posted(
    session: Session,
    table: type[Row],
    sorts: Mapping[str, SortKey],
    sort: str,
    limit: int,
    cursor: str | None,
    chosen: str,
) -> tuple[list[Row], str | None]:
    """A page of the rows that did not come with AutoSync, and its `next`."""
    query = select(table).where(table.bundled.is_(False))
    page, following = sorted_page(session, query, sorts, sort, table.id, limit, cursor)
    rows: list[Row] = [row for row, *_ in page]
    if chosen.isalnum() and all(row.id != chosen for row in rows):
        row = session.get(table, chosen)
        rows += [row] if row is not None else []
    return rows, following


@cache
def _bundled_models() -> tuple[BundledModel, ...]:
    return tuple(BundledModel.model_validate(spec) for spec in BUNDLED.values())


def graph_document(session: Session, graph_id: str) -> str:
    """The graph as JSON, a bundled one by its name; raises NotFound."""
    if is_bundled(graph_id):
        return to_json(bundled(graph_id, None))
    return stored(session, GraphRow, graph_id, "graph").document


def cluster_document(session: Session, cluster_id: str) -> str:
    """The cluster as JSON, a bundled one by its name; raises NotFound."""
    if cluster_id in bundled_clusters():
        return to_json(load_cluster(data_file("clusters", f"{cluster_id}.yaml")))
    return stored(session, ClusterRow, cluster_id, "cluster").document


def measured_costs(session: Session, tuning: Tuning) -> tuple[MessageCost, ...]:
    """What a tuning measured of its cluster before the search; empty where it kept what the cluster
    states."""
    domain = stored(session, DomainRow, tuning.domain_id, "domain").cluster
    asked = cluster_document(session, tuning.cluster_id)
    costs, stated = (json.loads(document)["costs"] for document in (domain, asked))
    if costs == stated:
        return ()
    return tuple(adapter(MessageCost).validate_python(cost) for cost in costs)


def strategy_document(session: Session, strategy_id: str) -> str:
    """A strategy that some tuning proposed, as JSON; raises NotFound."""
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    document = session.scalars(query).first() if strategy_id.isalnum() else None
    remedy = "GET /v1/tunings/{id}/strategies lists those of a tuning."
    return found(document, "strategy", strategy_id, remedy)


@dataclass(frozen=True, slots=True)
class OperationLine:
    """place: in the forward pass. share: of the compute of an iteration. gradient_bytes: of the
    variables whose gradients are complete after its backward."""

    place: int
    operation: Operation
    share: float
    gradient_bytes: int


@dataclass(frozen=True, slots=True)
class VariableLine:
    """place: in which its gradient becomes ready, counted from 1. after: the operation whose
    backward pass completes it."""

    place: int
    variable: Variable
    after: str


@dataclass(frozen=True, slots=True)
class ModelAccount:
    """shares_of: what the operations' shares are shares of, in words."""

    graph: ModelGraph
    graph_id: str
    operations: tuple[OperationLine, ...]
    variables: tuple[VariableLine, ...]
    shares_of: str


def model_account(session: Session, name: str) -> ModelAccount:
    """Of a stored graph by its id, or of a bundled one by its name; raises NotFound."""
    if is_bundled(name):
        graph = bundled(name, None)
        graph_id = graph.id
    elif name.isalnum() and _is_stored(session, name):
        graph, graph_id = load_graph(session, name), name
    else:
        known = ", ".join(BUNDLED)
        raise not_found("model", name, f"Upload its graph, or take a bundled one: {known}.")
    seconds, shares_of = _compute(session, graph, graph_id)
    total = sum(seconds) or 1.0
    bytes_after = [0] * len(graph.operations)
    for variable, operation in zip(graph.variables, graph.gradient_after, strict=True):
        bytes_after[operation] += variable.size_bytes
    return ModelAccount(
        graph,
        graph_id,
        tuple(
            OperationLine(place, operation, seconds[place] / total, bytes_after[place])
            for place, operation in enumerate(graph.operations)
        ),
        tuple(
            VariableLine(
                place,
                graph.variables[index],
                graph.operations[graph.gradient_after[index]].name,
            )
            for place, index in enumerate(graph.gradient_order, 1)
        ),
        shares_of,
    )


def _is_stored(session: Session, graph_id: str) -> bool:
    return session.scalar(select(GraphRow.id).where(GraphRow.id == graph_id)) is not None


def _compute(session: Session, graph: ModelGraph, graph_id: str) -> tuple[list[float], str]:
    """Seconds of the newest profile of a tuning; without one, floating-point operations."""
    query = select(DomainRow.profile).where(DomainRow.graph_id == graph_id)
    document = session.scalars(query.order_by(DomainRow.created_at.desc()).limit(1)).first()
    if document is None:
        flops = [float(each.forward_flops + each.backward_flops) for each in graph.operations]
        return flops, "shares of floating-point operations: no tuning has a profile yet"
    profile = from_json(Profile, document)
    both = zip(profile.forward_seconds, profile.backward_seconds, strict=True)
    words = f"shares of {profile.source} seconds on {profile.device}"
    return [forward + backward for forward, backward in both], words
