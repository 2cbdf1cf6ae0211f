"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from autosync.api.db.clock import now_seconds
from autosync.api.db.lookup import stored
from autosync.api.db.tables import (
    Base,
    ClusterRow,
    DomainRow,
    EventRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from autosync.api.views.cursors import one_page, read_cursor
from autosync.api.views.rankings import ranked_strategies as ranked_strategies
from autosync.api.views.response_model import ResponseModel
from autosync.api.views.time_left import TimeLeft
from autosync.api.views.tuning_schemas import (
    Trial,
    Trials,
    Tuning,
    TuningProgress,
    TuningResult,
    Tunings,
)

LATEST_EVENTS = 500
"""So many tell how long a trial takes; a tuning may have ten thousands."""


def tunings(
    session: Session, limit: int, cursor: str | None = None, state: str | None = None
) -> Tunings:
    """The newest first. cursor: `next` of the page before. state: of these alone.

    Raises:
        InvalidInput: the cursor is none of this list.
    """
    in_state = () if state is None else (TuningRow.state == state,)
    query = _SUMMARY.where(*in_state)
    if cursor:
        query = query.where(tuple_(*_NEWEST) < read_cursor(cursor, float, str))
    query = query.order_by(*(column.desc() for column in _NEWEST)).limit(limit + 1)
    rows = session.execute(query).all()
    shown, following = one_page(rows, limit, lambda row: (row[0].created_at, row[0].id))
    total = session.scalar(select(func.count()).select_from(TuningRow).where(*in_state)) or 0
    return Tunings(items=[_summary(*row) for row in shown], total=total, next=following)


_NEWEST = (TuningRow.created_at, TuningRow.id)


def tuning(session: Session, tuning_id: str) -> Tuning:
    """Raises NotFound."""
    stored(session, TuningRow, tuning_id, "tuning")
    return _summary(*session.execute(_SUMMARY.where(TuningRow.id == tuning_id)).one())


def tunings_of(session: Session, tuning_ids: Sequence[str]) -> list[Tuning]:
    """Those that there are, in the order of the ids."""
    rows = session.execute(_SUMMARY.where(TuningRow.id.in_(tuning_ids)))
    found = {row[0].id: _summary(*row) for row in rows}
    return [found[each] for each in tuning_ids if each in found]


_SUMMARY = (
    select(TuningRow, DomainRow, GraphRow, ClusterRow, OutcomeRow, StrategyRow)
    .add_columns(
        select(func.coalesce(func.max(TrialRow.position) + 1, 0))  # positions have no gaps
        .where(TrialRow.tuning_id == TuningRow.id)
        .scalar_subquery()
    )
    .join(DomainRow, DomainRow.id == TuningRow.domain_id)
    .join(GraphRow, GraphRow.id == DomainRow.graph_id)
    .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
    .outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    .outerjoin(StrategyRow, StrategyRow.hash == OutcomeRow.strategy_hash)
)


def _summary(
    row: TuningRow,
    domain: DomainRow,
    graph: GraphRow,
    cluster: ClusterRow,
    outcome: OutcomeRow | None,
    strategy: StrategyRow | None,
    trial_count: int,
) -> Tuning:
    return Tuning.model_validate(
        {
            **_columns(row, Tuning),
            "graph_id": graph.id,
            "graph": graph.name,
            "batch_size": graph.batch_size,
            "cluster_id": cluster.id,
            "cluster": cluster.name,
            "world_size": cluster.world_size,
            "profile_source": domain.profile_source,
            "settings": json.loads(row.settings),
            "tags": row.tags.split(),
            "progress": _columns(row, TuningProgress) | {"trials": trial_count},
            "result": outcome
            and strategy
            and {
                **_columns(outcome, TuningResult),
                "words": strategy.words,
                "strategy_id": strategy.strategy_id,
            },
        }
    )


def _columns(row: Base, answer: type[ResponseModel]) -> dict[str, Any]:
    """The columns of a row that an answer shows under the same name."""
    names = answer.model_fields.keys() & row.__table__.columns.keys()
    return {name: getattr(row, name) for name in names}


def time_left_words(session: Session, tuning: Tuning) -> str:
    """How long it still takes, as `TimeLeft` says it now."""
    left = TimeLeft(tuning.settings["budget"], tuning.settings["repeats"])
    query = select(EventRow.kind, EventRow.done, EventRow.total, EventRow.created_at)
    newest = query.where(EventRow.tuning_id == tuning.id).order_by(EventRow.id.desc())
    for row in reversed(session.execute(newest.limit(LATEST_EVENTS)).all()):
        left.see(*row)
    return left.words(session.scalars(select(now_seconds())).one())


def trials(
    session: Session, tuning_id: str, limit: int | None = None, cursor: str | None = None
) -> Trials:
    """Finished trials, oldest first. limit: how many, at most; by default all. cursor: `next` of
    the page before.

    Raises:
        NotFound: no such tuning. InvalidInput: the cursor is none of this list.
    """
    stored(session, TuningRow, tuning_id, "tuning")
    query = _TRIALS.where(TrialRow.tuning_id == tuning_id).order_by(TrialRow.position)
    if cursor:
        (position,) = read_cursor(cursor, int)
        query = query.where(TrialRow.position > position)
    if limit is not None:
        query = query.limit(limit + 1)
    rows = session.execute(query).all()
    shown, following = one_page(rows, limit, lambda row: (row[0].position,))
    return Trials(tuning_id=tuning_id, items=[_trial(*row) for row in shown], next=following)


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
            **_columns(proposal, Trial),
            **_columns(trial, Trial),
            "words": words,
            "recorded": recorded,
            "versions": dict(trial.versions),
        }
    )
