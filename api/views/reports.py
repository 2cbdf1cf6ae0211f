"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import found
from autosync.api.db.tables import (
    Base,
    ClusterRow,
    DomainRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from autosync.api.http import schemas
from autosync.search.loop.outcome import DDP, paired_speedup


def tunings(session: Session, limit: int, offset: int) -> schemas.Tunings:
    """The newest first."""
    query = _SUMMARY.order_by(TuningRow.created_at.desc(), TuningRow.id)
    rows = session.execute(query.limit(limit).offset(offset))
    total = session.scalar(select(func.count()).select_from(TuningRow)) or 0
    return schemas.Tunings(items=[_summary(*row) for row in rows], total=total)


def tuning(session: Session, tuning_id: str) -> schemas.Tuning:
    """Raises NotFound."""
    found(session, TuningRow, tuning_id, "tuning")
    return _summary(*session.execute(_SUMMARY.where(TuningRow.id == tuning_id)).one())


_SUMMARY = (
    select(TuningRow, DomainRow, GraphRow, ClusterRow, OutcomeRow, StrategyRow)
    .add_columns(
        select(func.count())
        .select_from(TrialRow)
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
) -> schemas.Tuning:
    return schemas.Tuning.model_validate(
        {
            **_columns(row, schemas.Tuning),
            "graph_id": graph.id,
            "graph": graph.name,
            "batch_size": graph.batch_size,
            "cluster_id": cluster.id,
            "cluster": cluster.name,
            "world_size": cluster.world_size,
            "profile_source": domain.profile_source,
            "settings": json.loads(row.settings),
            "progress": _columns(row, schemas.Progress) | {"trials": trial_count},
            "result": outcome
            and strategy
            and {
                **_columns(outcome, schemas.Result),
                "words": strategy.words,
                "strategy_id": strategy.strategy_id,
            },
        }
    )


def _columns(row: Base, answer: type[schemas.ResponseModel]) -> dict[str, Any]:
    """The columns of a row that an answer shows under the same name."""
    names = answer.model_fields.keys() & row.__table__.columns.keys()
    return {name: getattr(row, name) for name in names}


@dataclass(frozen=True, slots=True)
class _Tried:
    """A proposal, and its trial if it has one; recorded: the trial holds a timeline."""

    proposal: ProposalRow
    words: str
    trial: TrialRow | None
    recorded: bool


def ranked_strategies(session: Session, tuning_id: str) -> schemas.RankedStrategies:
    """Every proposed strategy: measured ones first, the fastest on top, then those that wait or
    failed. The same judgement as `autosync.search.loop.outcome.rank_measured`."""
    row = found(session, TuningRow, tuning_id, "tuning")
    grouped: dict[str, list[_Tried]] = {}
    for tried in _tried(session, tuning_id):
        grouped.setdefault(tried.proposal.strategy_id, []).append(tried)
    ddp = next((group for group in grouped.values() if _is_ddp(group)), None)
    entries = [_entry(group, ddp) for group in grouped.values()]
    entries.sort(key=lambda e: (e["step_seconds"] is None, e["step_seconds"], e["origin"]))
    return schemas.RankedStrategies(
        tuning_id=tuning_id,
        byte_scale=row.byte_scale,
        time_scale=row.time_scale,
        items=[schemas.RankedStrategy(rank=rank, **entry) for rank, entry in enumerate(entries, 1)],
    )


def trials(session: Session, tuning_id: str) -> schemas.Trials:
    """Finished trials, oldest first."""
    found(session, TuningRow, tuning_id, "tuning")
    items = [
        _trial(tried, tried.trial)
        for tried in _tried(session, tuning_id)
        if tried.trial is not None
    ]
    items.sort(key=lambda trial: trial.position)
    return schemas.Trials(tuning_id=tuning_id, items=items)


def _tried(session: Session, tuning_id: str) -> Sequence[_Tried]:
    query = (
        select(ProposalRow, StrategyRow.words, TrialRow, TrialRow.timeline.is_not(None))
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
        .outerjoin(
            TrialRow,
            (TrialRow.tuning_id == ProposalRow.tuning_id) & (TrialRow.key == ProposalRow.key),
        )
        .where(ProposalRow.tuning_id == tuning_id)
        .order_by(ProposalRow.position)
    )
    return [_Tried(*row) for row in session.execute(query)]


def _trial(tried: _Tried, trial: TrialRow) -> schemas.Trial:
    return schemas.Trial.model_validate(
        {
            **_columns(tried.proposal, schemas.Trial),
            **_columns(trial, schemas.Trial),
            "words": tried.words,
            "recorded": tried.recorded,
            "versions": dict(trial.versions),
        }
    )


def _entry(group: list[_Tried], ddp: list[_Tried] | None) -> dict[str, Any]:
    first = group[0]
    seconds, confirmed = _judged(group)
    low, median, high = np.percentile(seconds, [10, 50, 90]) if seconds else (0.0, 0.0, 0.0)
    speedup = _speedup(ddp, group) if seconds and ddp and ddp is not group else None
    errors = [t.trial for t in group if t.trial is not None and t.trial.error_kind is not None]
    return {
        "strategy_id": first.proposal.strategy_id,
        "words": first.words,
        "origin": first.proposal.origin,
        "simulator": first.proposal.simulator,
        "predicted_seconds": first.proposal.predicted_seconds,
        "step_seconds": float(median) if seconds else None,
        "spread": float((high - low) / median) if seconds else None,
        "speedup_low": speedup and speedup[0],
        "speedup": speedup and speedup[1],
        "speedup_high": speedup and speedup[2],
        "confirmed": confirmed,
        "is_ddp": _is_ddp(group),
        "trials": sum(tried.trial is not None for tried in group),
        "recorded": any(tried.recorded for tried in group),
        "error": f"{errors[0].error_kind}: {errors[0].error_message}" if errors else None,
    }


def _judged(group: list[_Tried]) -> tuple[list[float], bool]:
    """The iteration seconds that count, and whether they are the confirmation's."""
    measured = [(t.proposal.phase, t.trial) for t in group if t.trial and t.trial.step_seconds]
    confirming = [trial for phase, trial in measured if phase == "confirm"]
    judged = confirming or [trial for _, trial in measured]
    return [second for trial in judged for second in trial.iteration_seconds], bool(confirming)


def _speedup(ddp: list[_Tried], group: list[_Tried]) -> tuple[float, float, float] | None:
    """Repeat by repeat where both were confirmed, else of the medians (percentiles alike)."""
    ours, theirs = _repeats(group), _repeats(ddp)
    if both := sorted(ours.keys() & theirs.keys()):
        return paired_speedup([theirs[i] for i in both], [ours[i] for i in both])
    ddp_seconds, ddp_confirmed = _judged(ddp)
    if ddp_confirmed:
        ddp_seconds = [
            second
            for tried in ddp
            if tried.trial and tried.proposal.phase == "search"
            for second in tried.trial.iteration_seconds
        ]
    if not ddp_seconds:
        return None
    ratio = float(np.median(ddp_seconds) / np.median(_judged(group)[0]))
    return ratio, ratio, ratio


def _repeats(group: list[_Tried]) -> dict[int, float]:
    return {
        tried.proposal.round: tried.trial.step_seconds
        for tried in group
        if tried.proposal.phase == "confirm" and tried.trial and tried.trial.step_seconds
    }


def _is_ddp(group: list[_Tried]) -> bool:
    return group[0].proposal.origin == DDP
