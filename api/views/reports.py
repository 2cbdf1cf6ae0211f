"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, case, func, literal, select
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
from autosync.api.views.rankings import first_confirmed
from autosync.api.views.rankings import ranked_strategies as ranked_strategies
from autosync.api.views.response_model import ResponseModel
from autosync.api.views.sort_orders import SortKey, sorted_page
from autosync.api.views.time_left import TimeLeft
from autosync.api.views.tuning_schemas import (
    Trial,
    Trials,
    Tuning,
    TuningProgress,
    TuningResult,
    Tunings,
)
from autosync.search.loop.outcome import DDP

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
) -> Tunings:
    """A page of all tunings, or of those in a state, with a tag, (not) archived. cursor: `next` of
    the page before. sort: one of TUNING_SORTS, with `-` for the largest first.

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
    query = _SUMMARY.where(*only)
    rows, following = sorted_page(session, query, TUNING_SORTS, sort, TuningRow.id, limit, cursor)
    total = session.scalar(select(func.count()).select_from(TuningRow).where(*only)) or 0
    return Tunings(items=[_summary(*row[:-2]) for row in rows], total=total, next=following)


def has_tag(tag: str) -> ColumnElement[bool]:
    return (" " + TuningRow.tags + " ").contains(f" {tag} ", autoescape=True)


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
        .scalar_subquery(),
        case(
            (OutcomeRow.ddp_seconds > 0, literal(DDP)),
            (
                OutcomeRow.ddp_seconds == 0,
                first_confirmed(ProposalRow.origin, TuningRow.id).scalar_subquery(),
            ),
        ),
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
    baseline: str | None,
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
                "ddp_seconds": outcome.ddp_seconds or None,
                "baseline": baseline,
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
            **_columns(proposal, Trial),
            **_columns(trial, Trial),
            "words": words,
            "recorded": recorded,
            "versions": dict(trial.versions),
        }
    )
