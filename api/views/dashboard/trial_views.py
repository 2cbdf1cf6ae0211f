"""Trials a page at a time, and one of them with all that is known of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Double, func, select, type_coerce
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import ProposalRow, StrategyRow, TrialRow, TuningRow
from autosync.api.views.schemas import TrialDetail
from autosync.search.loop.outcome import DDP, paired_speedup
from autosync.simulator.ranking_accuracy import pairs_ranked

MOST_IN_A_ROUND = 500
"""Strategies whose pairs are counted: every n-th of more, since pairs grow with their square."""


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """A trial that measured something. step_seconds: of the domain."""

    position: int
    phase: str
    round: int
    strategy_id: str
    step_seconds: float
    predicted_seconds: float
    is_ddp: bool


def trial_points(session: Session, tuning_id: str) -> list[TrialPoint]:
    """In the order in which they ran; trials that failed are left out."""
    query = (
        select(
            TrialRow.position,
            ProposalRow.phase,
            ProposalRow.round,
            ProposalRow.strategy_id,
            type_coerce(TrialRow.step_seconds, Double),
            ProposalRow.predicted_seconds,
            ProposalRow.origin == DDP,
        )
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .where(TrialRow.tuning_id == tuning_id, TrialRow.step_seconds.is_not(None))
        .order_by(TrialRow.position)
    )
    return [TrialPoint(*row) for row in session.execute(query)]


def median_seconds(points: Iterable[TrialPoint]) -> float | None:
    """Over trials of one strategy: of the confirmation alone where it was confirmed."""
    known = list(points)
    confirming = [point.step_seconds for point in known if point.phase == "confirm"]
    deciding = confirming or [point.step_seconds for point in known]
    return float(np.median(deciding)) if deciding else None


def ddp_seconds(points: Iterable[TrialPoint]) -> float | None:
    return median_seconds(point for point in points if point.is_ddp)


def median_by_strategy(points: Iterable[TrialPoint]) -> dict[str, float]:
    """Seconds by the strategy's id, the fastest first."""
    trials: dict[str, list[TrialPoint]] = {}
    for point in points:
        trials.setdefault(point.strategy_id, []).append(point)
    medians = {key: median_seconds(mine) or mine[0].step_seconds for key, mine in trials.items()}
    return dict(sorted(medians.items(), key=lambda each: each[1]))


def best_so_far(points: Sequence[TrialPoint]) -> list[float]:
    """After each trial the smallest median of a strategy, so that one lucky trial of many does not
    stay the best."""
    trials: dict[str, list[TrialPoint]] = {}
    medians: dict[str, float] = {}
    found: list[float] = []
    best = ""
    for point in points:
        mine = trials.setdefault(point.strategy_id, [])
        mine.append(point)
        median = median_seconds(mine) or point.step_seconds
        medians[point.strategy_id] = median
        if not best or median < medians[best]:
            best = point.strategy_id
        elif best == point.strategy_id:  # it may have become slower than another one
            best = min(medians, key=lambda each: medians[each])
        found.append(medians[best])
    return found


@dataclass(frozen=True, slots=True)
class RankedPairs:
    """right: share of the pairs of a round's strategies that were ranked rightly."""

    round: int
    right: float
    pairs: int
    strategies: int


def pairs_by_round(points: Sequence[TrialPoint]) -> list[RankedPairs]:
    """Of each round of the search the strategies tried in it, by the predictions that chose them;
    rounds with fewer than two strategies have no pairs."""
    rounds: dict[int, list[TrialPoint]] = {}
    for point in points:
        if point.phase == "search":
            rounds.setdefault(point.round, []).append(point)
    found = []
    for number, members in sorted(rounds.items()):
        counted = members[:: -(-len(members) // MOST_IN_A_ROUND)]
        right, pairs = pairs_ranked(
            np.array([point.predicted_seconds for point in counted]),
            np.array([point.step_seconds for point in counted]),
        )
        if pairs:
            found.append(RankedPairs(number, right / pairs, pairs, len(members)))
    return found


@dataclass(frozen=True, slots=True)
class ConfirmedSpeedup:
    """Of one finalist. repeats: the baseline's seconds by its own, in each repeat."""

    strategy_id: str
    low: float
    median: float
    high: float
    repeats: tuple[float, ...]


def confirmed_speedups(points: Sequence[TrialPoint], baseline_id: str) -> list[ConfirmedSpeedup]:
    """The fastest first; what has no repeat in common with the baseline is left out."""
    seconds: dict[str, dict[int, float]] = {}
    for point in points:
        if point.phase == "confirm":
            seconds.setdefault(point.strategy_id, {})[point.round] = point.step_seconds
    base = seconds.pop(baseline_id, {})
    found = []
    for strategy_id, mine in seconds.items():
        if both := sorted(mine.keys() & base.keys()):
            theirs, ours = [base[i] for i in both], [mine[i] for i in both]
            low, median, high = paired_speedup(theirs, ours)
            repeats = tuple(t / o for t, o in zip(theirs, ours, strict=True))
            found.append(ConfirmedSpeedup(strategy_id, low, median, high, repeats))
    return sorted(found, key=lambda each: -each.median)


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
