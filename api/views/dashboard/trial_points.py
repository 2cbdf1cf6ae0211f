"""A tuning's trials as points of charts: medians, the best so far, rounds and repeats."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Double, select, type_coerce
from sqlalchemy.orm import Session

from autosync.api.db.tables import ProposalRow, StrategySummaryRow, TrialRow
from autosync.search.loop.outcome import DDP, reporting_half
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
    """Over trials of one strategy, in the order in which they ran: of the repeats that report
    where it was confirmed."""
    known = list(points)
    confirming = [point.step_seconds for point in known if point.phase == "confirm"]
    deciding = reporting_half(confirming) or [point.step_seconds for point in known]
    return float(np.median(deciding)) if deciding else None


def measured_strategies(session: Session, tuning_id: str) -> Sequence[StrategySummaryRow]:
    """As the ranking judges them, the fastest first."""
    of = StrategySummaryRow
    query = select(of).where(of.tuning_id == tuning_id, of.step_seconds.is_not(None))
    return session.scalars(query.order_by(of.sort_seconds, of.origin, of.position)).all()


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
    """right: share of the pairs of a round's strategies that were ranked correctly."""

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
