"""Strategies of a tuning summed up as they are proposed and tried: what its ranking is read from.

The same judgement as `autosync.search.loop.outcome.rank_measured`, kept on write, so that a page of
the ranking costs no more for a tuning of many trials.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from autosync.api.db.document_store import insert_new
from autosync.api.db.tables import ProposalRow, StrategySummaryRow, TrialRow
from autosync.search.loop.outcome import reporting_half


def add_summary(
    session: Session, tuning_id: str, strategy_hash: str, position: int, proposal: dict[str, Any]
) -> None:
    """Of a strategy that was just proposed; nothing where it was proposed before.

    proposal: the columns of its row.
    """
    shared = ("strategy_id", "origin", "simulator", "predicted_seconds")
    insert_new(
        session,
        StrategySummaryRow,
        tuning_id=tuning_id,
        strategy_hash=strategy_hash,
        position=position,
        **{name: proposal[name] for name in shared},
        sort_seconds=math.inf,
        confirmed=False,
        trials=0,
        recorded=False,
    )


def update_summary(session: Session, tuning_id: str, strategy_id: str) -> None:
    """Of a strategy of which a trial was just stored."""
    session.execute(
        update(StrategySummaryRow)
        .where(
            StrategySummaryRow.tuning_id == tuning_id,
            StrategySummaryRow.strategy_id == strategy_id,
        )
        .values(**_measured(_trials_of(session, tuning_id, strategy_id)))
        .execution_options(synchronize_session=False)
    )


def _trials_of(session: Session, tuning_id: str, strategy_id: str) -> Sequence[Row[Any]]:
    """In the order of their proposals."""
    columns: tuple[Any, ...] = (
        ProposalRow.phase,
        TrialRow.step_seconds,
        TrialRow.iteration_seconds,
        TrialRow.error_kind,
        TrialRow.error_message,
        TrialRow.timeline.is_not(None).label("recorded"),
    )
    query = (
        select(*columns)
        .join(
            TrialRow,
            (TrialRow.tuning_id == ProposalRow.tuning_id) & (TrialRow.key == ProposalRow.key),
        )
        .where(ProposalRow.tuning_id == tuning_id, ProposalRow.strategy_id == strategy_id)
        .order_by(ProposalRow.position)
    )
    return session.execute(query).all()


def _measured(trials: Sequence[Row[Any]]) -> dict[str, Any]:
    """Columns that follow from a strategy's trials."""
    measured = [trial for trial in trials if trial.step_seconds]
    confirming = [trial for trial in measured if trial.phase == "confirm"]
    judged = reporting_half(confirming) or measured
    seconds = [second for trial in judged for second in trial.iteration_seconds]
    searched = [s for t in measured if t.phase == "search" for s in t.iteration_seconds]
    low, median, high = np.percentile(seconds, [10, 50, 90]) if seconds else (0.0, 0.0, 0.0)
    errors = [trial for trial in trials if trial.error_kind is not None]
    return {
        "step_seconds": float(median) if seconds else None,
        "sort_seconds": float(median) if seconds else math.inf,
        "spread": float((high - low) / median) if seconds else None,
        "search_seconds": float(np.median(searched)) if searched else None,
        "confirmed": bool(confirming),
        "trials": len(trials),
        "recorded": any(trial.recorded for trial in trials),
        "error": f"{errors[0].error_kind}: {errors[0].error_message}" if errors else None,
    }
