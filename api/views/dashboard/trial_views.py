"""Trials a page at a time, and one of them with all that is known of it."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import ProposalRow, StrategyRow, TrialRow, TuningRow
from autosync.api.views.tuning_schemas import TrialDetail

PAGE_SIZE = 50
OF_TRIAL = (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key)


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One of a list. error_kind: None where it measured something."""

    position: int
    phase: str
    round: int
    strategy_id: str
    origin: str
    predicted_seconds: float
    step_seconds: float | None
    spread: float | None
    error_kind: str | None


@dataclass(frozen=True, slots=True)
class TrialPage:
    """total: of all pages."""

    items: list[TrialLine]
    total: int
    pages: int


def trial_page(
    session: Session,
    tuning_id: str,
    page: int = 1,
    strategy_id: str = "",
    failed: bool = False,
) -> TrialPage:
    """Oldest first. strategy_id: only of this one. failed: only those that did.

    Raises:
        NotFound: no such tuning.
    """
    stored(session, TuningRow, tuning_id, "tuning")
    query = (
        select(
            TrialRow.position,
            ProposalRow.phase,
            ProposalRow.round,
            TrialRow.strategy_id,
            ProposalRow.origin,
            ProposalRow.predicted_seconds,
            TrialRow.step_seconds,
            TrialRow.spread,
            TrialRow.error_kind,
        )
        .join(ProposalRow, OF_TRIAL)
        .where(TrialRow.tuning_id == tuning_id)
    )
    if strategy_id:
        query = query.where(TrialRow.strategy_id == strategy_id)
    if failed:
        query = query.where(TrialRow.error_kind.is_not(None))
    total = session.scalar(select(func.count()).select_from(query.subquery())) or 0
    rows = session.execute(
        query.order_by(TrialRow.position).limit(PAGE_SIZE).offset((page - 1) * PAGE_SIZE)
    )
    return TrialPage([TrialLine(*row) for row in rows], total, max(1, -(-total // PAGE_SIZE)))


def trial_detail(session: Session, tuning_id: str, position: int) -> TrialDetail:
    """Raises NotFound."""
    stored(session, TuningRow, tuning_id, "tuning")
    query = (
        select(TrialRow, ProposalRow, StrategyRow.words, TrialRow.timeline.is_not(None))
        .join(ProposalRow, OF_TRIAL)
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
    )
    row = session.execute(
        query.where(TrialRow.tuning_id == tuning_id, TrialRow.position == position)
    ).first()
    trial, proposal, words, recorded = found(
        row,
        thing="trial",
        key=str(position),
        remedy=f"GET /v1/tunings/{tuning_id}/trials lists them.",
    )
    columns = {
        **{column.key: getattr(proposal, column.key) for column in ProposalRow.__table__.columns},
        **{name: getattr(trial, name) for name in TrialDetail.model_fields if hasattr(trial, name)},
    }
    return TrialDetail.model_validate(
        {**columns, "words": words, "recorded": recorded, "versions": dict(trial.versions)}
    )
