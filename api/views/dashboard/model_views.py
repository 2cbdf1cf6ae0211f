"""A model graph in figures: its operations and variables, and where time and bytes are."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_graph
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import DomainRow, GraphRow
from autosync.documents import from_json
from autosync.domain import Profile
from autosync.graph import ModelGraph, Operation, Variable
from autosync.models import BUNDLED, bundled, is_bundled


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
    backward completes it."""

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
    elif name.isalnum() and session.get(GraphRow, name) is not None:
        graph = load_graph(session, name)
    else:
        known = ", ".join(BUNDLED)
        raise not_found("model", name, f"Upload its graph, or take a bundled one: {known}.")
    graph_id = graph.id
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
