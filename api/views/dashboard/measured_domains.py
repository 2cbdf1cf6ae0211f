"""What the runtime dataset holds: the trials of each domain, counted."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.tables import ClusterRow, DomainRow, GraphRow, TrialRow
from autosync.api.views.paging import SortKey, sorted_page
from autosync.api.views.rankings import searched_words


@dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """trials: finished ones, `failed` of which have no time. measured_at: the newest, in seconds
    since 1970-01-01 UTC."""

    domain_id: str
    graph_id: str
    graph: str
    batch_size: int
    cluster_id: str
    cluster: str
    world_size: int
    trials: int
    failed: int
    tunings: int
    measured_at: float


def measured_domains(
    session: Session, limit: int, cursor: str | None = None, text: str = ""
) -> tuple[list[MeasuredDomain], str | None]:
    """A page of domains that have trials, the one measured last first, and the next page's cursor.

    text: words in the names of model or cluster.

    Raises:
        InvalidInput: the cursor is of another list.
    """
    counted = (
        select(
            TrialRow.domain_id,
            func.count().label("trials"),
            func.count(TrialRow.error_kind).label("failed"),
            func.count(TrialRow.tuning_id.distinct()).label("tunings"),
            func.max(TrialRow.created_at).label("measured_at"),
        )
        .group_by(TrialRow.domain_id)
        .subquery()
    )
    of = counted.c
    query = (
        select(
            DomainRow.id,
            GraphRow.id,
            GraphRow.name,
            GraphRow.batch_size,
            ClusterRow.id,
            ClusterRow.name,
            ClusterRow.world_size,
            of.trials,
            of.failed,
            of.tunings,
            of.measured_at,
        )
        .join(counted, of.domain_id == DomainRow.id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
    )
    for word in searched_words(text):
        said = func.lower(GraphRow.name + " " + ClusterRow.name)
        query = query.where(said.contains(word, autoescape=True))
    sorts = {"measured": SortKey(of.measured_at)}
    rows, following = sorted_page(session, query, sorts, "-measured", DomainRow.id, limit, cursor)
    return [MeasuredDomain(*row[:-2]) for row in rows], following
