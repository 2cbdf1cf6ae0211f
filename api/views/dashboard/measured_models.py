"""What the runtime dataset holds: the trials of each model on each cluster, counted."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.tables import ClusterRow, DomainRow, GraphRow, TrialRow, TuningRow
from autosync.api.views.paging import SortKey, sorted_page
from autosync.api.views.rankings import searched_words


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """By the names of model and cluster, as `RuntimeFilter` takes them; graph_id, cluster_id: of
    one of that name. trials: finished ones, `failed` of which have no time. measured_at: the
    newest, in seconds since 1970-01-01 UTC."""

    graph: str
    graph_id: str
    smallest_batch: int
    largest_batch: int
    cluster: str
    cluster_id: str
    world_size: int
    trials: int
    failed: int
    tunings: int
    measured_at: float


def measured_models(
    session: Session, limit: int, cursor: str | None = None, text: str = ""
) -> tuple[list[MeasuredModel], str | None]:
    """A page of models on clusters that have trials, the one measured last first, and the next
    page's cursor.

    text: words in the names of model or cluster.

    Raises:
        InvalidInput: the cursor is of another list.
    """
    newest = func.max(TrialRow.created_at).label("measured_at")
    named = (GraphRow.name + " on " + ClusterRow.name).label("named")
    query = (
        select(
            GraphRow.name.label("graph"),
            func.max(GraphRow.id),
            func.min(GraphRow.batch_size),
            func.max(GraphRow.batch_size),
            ClusterRow.name.label("cluster"),
            func.max(ClusterRow.id),
            func.max(ClusterRow.world_size),
            func.count(),
            func.count(TrialRow.error_kind),
            func.count(TrialRow.tuning_id.distinct()),
            newest,
            named,
        )
        .select_from(TrialRow)
        .join(DomainRow, DomainRow.id == TrialRow.domain_id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(TuningRow, TuningRow.id == TrialRow.tuning_id)
        .join(ClusterRow, ClusterRow.id == TuningRow.cluster_id)
        .group_by(GraphRow.name, ClusterRow.name)
    )
    for word in searched_words(text):
        query = query.where(func.lower(named).contains(word, autoescape=True))
    grouped = query.subquery()
    sorts = {"measured": SortKey(grouped.c.measured_at)}
    columns = [column for column in grouped.c if column.name != "named"]
    rows, following = sorted_page(
        session, select(*columns), sorts, "-measured", grouped.c.named, limit, cursor
    )
    return [MeasuredModel(*row[: len(columns)]) for row in rows], following
