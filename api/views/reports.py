"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from autosync.api.db.database import now_seconds
from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import (
    Base,
    ClusterRow,
    DomainRow,
    EventRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.views.answer_columns import shared_columns, shared_names
from autosync.api.views.paging import SortKey, sorted_page
from autosync.api.views.rankings import ddp_error_of
from autosync.api.views.rankings import ranked_strategies as ranked_strategies
from autosync.api.views.schemas import (
    ResponseModel,
    Trial,
    Trials,
    Tuning,
    TuningProgress,
    TuningResult,
    Tunings,
)
from autosync.api.views.time_left import TimeLeft

LATEST_EVENTS = 500
"""So many tell how long a trial takes; a tuning may have ten thousands."""
TUNING_SORTS = {
    "created": SortKey(TuningRow.created_at),
    "finished": SortKey(TuningRow.finished_at, nullable=True),
    "best_seconds": SortKey(TuningRow.best_seconds, nullable=True),
    "speedup": SortKey(OutcomeRow.speedup, nullable=True),
}
TRIAL_SORTS = {
    "position": SortKey(TrialRow.position, int, unique=True),
    "step_seconds": SortKey(TrialRow.step_seconds, nullable=True),
}


def tunings(
    session: Session,
    limit: int,
    cursor: str | None = None,
    state: str | None = None,
    tag: str | None = None,
    archived: bool | None = None,
    sort: str = "-created",
    prefix: str | None = None,
    recorded: str | None = None,
) -> Tunings:
    """A page of all tunings, or of those in a state, with a tag, (not) archived, whose id begins
    so, with a recorded timeline of this strategy. cursor: `next` of the page before. sort: one of
    TUNING_SORTS, with `-` for the largest first.

    Raises:
        InvalidInput: there is no such sort, or the cursor is none of this list.
    """
    only: list[ColumnElement[bool]] = []
    if state is not None:
        only.append(TuningRow.state == state)
    if tag is not None:
        only.append(has_tag(tag))
    if archived is not None:
        only.append(TuningRow.archived.is_(archived))
    if prefix is not None:
        only.append(TuningRow.id.startswith(prefix, autoescape=True))
    if recorded is not None:
        found_in = select(StrategySummaryRow.tuning_id).where(
            StrategySummaryRow.strategy_id == recorded, StrategySummaryRow.recorded
        )
        only.append(TuningRow.id.in_(found_in))
    query = select(TuningRow.id).where(*only)
    if sort.endswith("speedup"):
        query = query.outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    rows, following = sorted_page(session, query, TUNING_SORTS, sort, TuningRow.id, limit, cursor)
    total = session.scalar(select(func.count()).select_from(TuningRow).where(*only)) or 0
    return Tunings(items=tunings_of(session, [row[0] for row in rows]), total=total, next=following)


def has_tag(tag: str) -> ColumnElement[bool]:
    return (" " + TuningRow.tags + " ").contains(f" {tag} ", autoescape=True)


def tuning(session: Session, tuning_id: str) -> Tuning:
    """Raises NotFound."""
    rows = tunings_of(session, [tuning_id]) if tuning_id.isalnum() else []
    remedy = "GET /v1/tunings lists what there is."
    return found(rows[0] if rows else None, "tuning", tuning_id, remedy)


def tunings_of(session: Session, tuning_ids: Sequence[str]) -> list[Tuning]:
    """Those that there are, in the order of the ids."""
    rows = session.execute(_SUMMARY.where(TuningRow.id.in_(tuning_ids)))
    known = {summary.id: summary for summary in (_summary(row) for row in rows)}
    return [known[each] for each in tuning_ids if each in known]


def _named(table: type[Base], answer: type[ResponseModel]) -> dict[str, Any]:
    return {name: getattr(table, name) for name in shared_names(table, answer)}


_OWN = _named(TuningRow, Tuning) | {
    "graph_id": GraphRow.id,
    "graph": GraphRow.name,
    "batch_size": GraphRow.batch_size,
    "cluster_id": ClusterRow.id,
    "cluster": ClusterRow.name,
    "world_size": ClusterRow.world_size,
    "profile_source": DomainRow.profile_source,
}
_PROGRESS = _named(TuningRow, TuningProgress) | {
    "trials": select(func.coalesce(func.max(TrialRow.position) + 1, 0))  # positions have no gaps
    .where(TrialRow.tuning_id == TuningRow.id)
    .scalar_subquery()
}
_RESULT = _named(OutcomeRow, TuningResult) | {
    "words": StrategyRow.words,
    "strategy_id": StrategyRow.strategy_id,
    "ddp_error": ddp_error_of(TuningRow.id),
}
"""Columns of an answer by the names of its fields; those of a list's rows are read alone, without
the objects of five tables for each."""
_SUMMARY = (
    select(*_OWN.values(), *_PROGRESS.values(), *_RESULT.values())
    .select_from(TuningRow)
    .join(DomainRow, DomainRow.id == TuningRow.domain_id)
    .join(GraphRow, GraphRow.id == DomainRow.graph_id)
    .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
    .outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    .outerjoin(StrategyRow, StrategyRow.hash == OutcomeRow.strategy_hash)
)


def _summary(row: Sequence[Any]) -> Tuning:
    """row: of `_SUMMARY`."""
    values = iter(row)
    own, progress, result = (
        {name: next(values) for name in names} for names in (_OWN, _PROGRESS, _RESULT)
    )
    return Tuning.model_validate(
        {
            **own,
            "settings": json.loads(own["settings"]),
            "tags": own["tags"].split(),
            "progress": progress,
            "result": result if result["words"] is not None else None,
        }
    )


def time_left_words(session: Session, tuning: Tuning) -> str:
    """How long it still takes, as `TimeLeft` says it now."""
    left = TimeLeft(tuning.settings["budget"], tuning.settings["repeats"])
    query = select(EventRow.kind, EventRow.done, EventRow.total, EventRow.created_at)
    newest = query.where(EventRow.tuning_id == tuning.id).order_by(EventRow.id.desc())
    for row in reversed(session.execute(newest.limit(LATEST_EVENTS)).all()):
        left.see(*row)
    return left.words(session.scalars(select(now_seconds())).one())


def trials(
    session: Session,
    tuning_id: str,
    limit: int | None = None,
    cursor: str | None = None,
    sort: str = "position",
) -> Trials:
    """Finished trials, oldest first. limit: how many, at most; by default all. cursor: `next` of
    the page before. sort: one of TRIAL_SORTS, with `-` for the largest first.

    Raises:
        NotFound: no such tuning. InvalidInput: there is no such sort, or the cursor is none of this
            list.
    """
    stored(session, TuningRow, tuning_id, "tuning")
    query = _TRIALS.where(TrialRow.tuning_id == tuning_id)
    rows, following = sorted_page(session, query, TRIAL_SORTS, sort, TrialRow.key, limit, cursor)
    return Trials(tuning_id=tuning_id, items=[_trial(*row[:-2]) for row in rows], next=following)


_TRIALS = (
    select(TrialRow, ProposalRow, StrategyRow.words, TrialRow.timeline.is_not(None))
    .join(
        ProposalRow,
        (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
    )
    .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
)


def _trial(trial: TrialRow, proposal: ProposalRow, words: str, recorded: bool) -> Trial:
    return Trial.model_validate(
        {
            **shared_columns(proposal, Trial),
            **shared_columns(trial, Trial),
            "words": words,
            "recorded": recorded,
            "versions": dict(trial.versions),
        }
    )
