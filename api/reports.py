"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api import schemas
from api.db.documents import found
from api.db.tables import (
    ClusterRow,
    DomainRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from search.outcome import DDP, paired_speedup


def tunings(session: Session, limit: int, offset: int) -> schemas.Tunings:
    """The newest first."""
    query = select(TuningRow).order_by(TuningRow.created_at.desc(), TuningRow.id)
    rows = session.scalars(query.limit(limit).offset(offset)).all()
    total = session.scalar(select(func.count()).select_from(TuningRow)) or 0
    return schemas.Tunings(items=[summary(session, row) for row in rows], total=total)


def tuning(session: Session, tuning_id: str) -> schemas.Tuning:
    return summary(session, found(session, TuningRow, tuning_id, "tuning"))


def summary(session: Session, row: TuningRow) -> schemas.Tuning:
    domain = session.get_one(DomainRow, row.domain_id)
    graph = session.execute(
        select(GraphRow.name, GraphRow.batch_size).where(GraphRow.id == domain.graph_id)
    ).one()
    cluster = session.execute(
        select(ClusterRow.name, ClusterRow.world_size).where(ClusterRow.id == domain.cluster_id)
    ).one()
    return schemas.Tuning.model_validate(
        {
            **{name: getattr(row, name) for name in _COLUMNS},
            "graph_id": domain.graph_id,
            "graph": graph.name,
            "batch_size": graph.batch_size,
            "cluster_id": domain.cluster_id,
            "cluster": cluster.name,
            "world_size": cluster.world_size,
            "profile_source": json.loads(domain.profile)["source"],
            "settings": json.loads(row.settings),
            "progress": _progress(session, row),
            "result": _result(session, row.id),
        }
    )


_COLUMNS = (
    *("id", "state", "domain_id", "launcher", "byte_scale", "time_scale", "simulator"),
    *("best_seconds", "error", "created_at", "started_at", "finished_at"),
)


def _progress(session: Session, row: TuningRow) -> schemas.Progress:
    counted = select(func.count()).select_from(TrialRow).where(TrialRow.tuning_id == row.id)
    return schemas.Progress(
        phase=row.phase,
        message=row.message,
        done=row.done,
        total=row.total,
        ranked=row.ranked,
        trials=session.scalar(counted) or 0,
    )


def _result(session: Session, tuning_id: str) -> schemas.Result | None:
    query = (
        select(OutcomeRow, StrategyRow.words, StrategyRow.strategy_id)
        .join(StrategyRow, StrategyRow.hash == OutcomeRow.strategy_hash)
        .where(OutcomeRow.tuning_id == tuning_id)
    )
    row = session.execute(query).first()
    if row is None:
        return None
    outcome, words, strategy_id = row
    numbers = {name: getattr(outcome, name) for name in _OUTCOME_COLUMNS}
    return schemas.Result(words=words, strategy_id=strategy_id, **numbers)


_OUTCOME_COLUMNS = (
    *("best_seconds", "ddp_seconds", "speedup", "speedup_low", "speedup_high"),
    *("repeats", "keep_ddp"),
)


@dataclass(frozen=True, slots=True)
class _Tried:
    """A proposal, and its trial if it has one."""

    proposal: ProposalRow
    words: str
    trial: TrialRow | None


def ranked_strategies(session: Session, tuning_id: str) -> schemas.RankedStrategies:
    """Every proposed strategy: measured ones first, the fastest on top, then those that wait or
    failed. The same judgement as `search.outcome.rank_measured`."""
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
        select(ProposalRow, StrategyRow.words, TrialRow)
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
        .outerjoin(
            TrialRow,
            (TrialRow.tuning_id == ProposalRow.tuning_id) & (TrialRow.key == ProposalRow.key),
        )
        .where(ProposalRow.tuning_id == tuning_id)
        .order_by(ProposalRow.position)
    )
    return [_Tried(proposal, words, trial) for proposal, words, trial in session.execute(query)]


def _trial(tried: _Tried, trial: TrialRow) -> schemas.Trial:
    proposal = tried.proposal
    return schemas.Trial(
        **{name: getattr(trial, name) for name in _TRIAL_COLUMNS},
        **{name: getattr(proposal, name) for name in _PROPOSAL_COLUMNS},
        words=tried.words,
        versions=dict(trial.versions),
    )


_TRIAL_COLUMNS = (
    *("key", "position", "strategy_id", "step_seconds", "spread", "iteration_seconds"),
    *("error_kind", "error_message", "launcher", "byte_scale", "time_scale", "load"),
    *("overhead_seconds", "peak_memory_bytes", "created_at"),
)
_PROPOSAL_COLUMNS = ("phase", "round", "origin", "predicted_seconds")


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
