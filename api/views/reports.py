"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import func, select
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
from autosync.api.views.response_model import ResponseModel
from autosync.api.views.time_left import TimeLeft
from autosync.api.views.tuning_schemas import (
    RankedStrategies,
    RankedStrategy,
    Trial,
    Trials,
    Tuning,
    TuningProgress,
    TuningResult,
    Tunings,
)
from autosync.search.loop.outcome import DDP, paired_speedup


def tunings(session: Session, limit: int, offset: int) -> Tunings:
    """The newest first."""
    query = _SUMMARY.order_by(TuningRow.created_at.desc(), TuningRow.id)
    rows = session.execute(query.limit(limit).offset(offset))
    total = session.scalar(select(func.count()).select_from(TuningRow)) or 0
    return Tunings(items=[_summary(*row) for row in rows], total=total)


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


@dataclass(frozen=True, slots=True)
class _ProposalTrial:
    """A proposal, and its trial if it has one; recorded: the trial holds a timeline."""

    proposal: ProposalRow
    words: str
    trial: TrialRow | None
    recorded: bool


def ranked_strategies(session: Session, tuning_id: str) -> RankedStrategies:
    """Every proposed strategy: measured ones first, the fastest on top, then those that wait or
    failed. The same judgement as `autosync.search.loop.outcome.rank_measured`."""
    row = stored(session, TuningRow, tuning_id, "tuning")
    by_strategy: dict[str, list[_ProposalTrial]] = {}
    for each in _proposals_with_trials(session, tuning_id):
        by_strategy.setdefault(each.proposal.strategy_id, []).append(each)
    ddp = next((group for group in by_strategy.values() if _is_ddp(group)), None)
    entries = [_ranked_entry(group, ddp) for group in by_strategy.values()]
    entries.sort(key=lambda e: (e["step_seconds"] is None, e["step_seconds"], e["origin"]))
    return RankedStrategies(
        tuning_id=tuning_id,
        byte_scale=row.byte_scale,
        time_scale=row.time_scale,
        items=[RankedStrategy(rank=rank, **entry) for rank, entry in enumerate(entries, 1)],
    )


def time_left_words(session: Session, tuning: Tuning) -> str:
    """How long it still takes, as `TimeLeft` says it now."""
    left = TimeLeft(tuning.settings["budget"], tuning.settings["repeats"])
    query = select(EventRow.kind, EventRow.done, EventRow.total, EventRow.created_at)
    for row in session.execute(query.where(EventRow.tuning_id == tuning.id).order_by(EventRow.id)):
        left.see(*row)
    return left.words(session.scalars(select(now_seconds())).one())


def trials(session: Session, tuning_id: str) -> Trials:
    """Finished trials, oldest first."""
    stored(session, TuningRow, tuning_id, "tuning")
    items = [
        _trial(each, each.trial)
        for each in _proposals_with_trials(session, tuning_id)
        if each.trial is not None
    ]
    items.sort(key=lambda trial: trial.position)
    return Trials(tuning_id=tuning_id, items=items)


def ran_on(session: Session, tuning_id: str) -> str:
    """Where its trials ran, in the launchers' words; empty before the first."""
    query = select(TrialRow.launcher).where(TrialRow.tuning_id == tuning_id)
    return ", ".join(dict.fromkeys(session.scalars(query.order_by(TrialRow.position))))


def _proposals_with_trials(session: Session, tuning_id: str) -> Sequence[_ProposalTrial]:
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
    return [_ProposalTrial(*row) for row in session.execute(query)]


def _trial(of: _ProposalTrial, trial: TrialRow) -> Trial:
    return Trial.model_validate(
        {
            **_columns(of.proposal, Trial),
            **_columns(trial, Trial),
            "words": of.words,
            "recorded": of.recorded,
            "versions": dict(trial.versions),
        }
    )


def _ranked_entry(group: list[_ProposalTrial], ddp: list[_ProposalTrial] | None) -> dict[str, Any]:
    """The fields of a `RankedStrategy` but its rank. group: all proposals of one strategy."""
    first = group[0]
    seconds, confirmed = _deciding_seconds(group)
    low, median, high = np.percentile(seconds, [10, 50, 90]) if seconds else (0.0, 0.0, 0.0)
    speedup = _speedup(ddp, group) if seconds and ddp and ddp is not group else None
    errors = [each.trial for each in group if each.trial and each.trial.error_kind is not None]
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
        "trials": sum(each.trial is not None for each in group),
        "recorded": any(each.recorded for each in group),
        "error": f"{errors[0].error_kind}: {errors[0].error_message}" if errors else None,
    }


def _deciding_seconds(group: list[_ProposalTrial]) -> tuple[list[float], bool]:
    """The iteration seconds that count, and whether they are the confirmation's."""
    measured = [(e.proposal.phase, e.trial) for e in group if e.trial and e.trial.step_seconds]
    confirming = [trial for phase, trial in measured if phase == "confirm"]
    deciding = confirming or [trial for _, trial in measured]
    return [second for trial in deciding for second in trial.iteration_seconds], bool(confirming)


def _speedup(
    ddp: list[_ProposalTrial], group: list[_ProposalTrial]
) -> tuple[float, float, float] | None:
    """Repeat by repeat where both were confirmed, else of the medians (percentiles alike)."""
    ours, theirs = _repeats(group), _repeats(ddp)
    if both := sorted(ours.keys() & theirs.keys()):
        return paired_speedup([theirs[i] for i in both], [ours[i] for i in both])
    ddp_seconds, ddp_confirmed = _deciding_seconds(ddp)
    if ddp_confirmed:
        ddp_seconds = [
            second
            for each in ddp
            if each.trial and each.proposal.phase == "search"
            for second in each.trial.iteration_seconds
        ]
    if not ddp_seconds:
        return None
    ratio = float(np.median(ddp_seconds) / np.median(_deciding_seconds(group)[0]))
    return ratio, ratio, ratio


def _repeats(group: list[_ProposalTrial]) -> dict[int, float]:
    """Step seconds by repeat of the confirmation."""
    return {
        each.proposal.round: each.trial.step_seconds
        for each in group
        if each.proposal.phase == "confirm" and each.trial and each.trial.step_seconds
    }


def _is_ddp(group: list[_ProposalTrial]) -> bool:
    return group[0].proposal.origin == DDP
