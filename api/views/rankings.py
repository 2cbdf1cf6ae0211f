"""The ranked strategies of a tuning, a page at a time, from what `strategy_summaries` keeps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    SQLColumnExpression,
    and_,
    case,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.orm import Session

from autosync.api.db.lookup import stored
from autosync.api.db.tables import (
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.views.paging import SortKey, check_state, one_page, read_cursor, sorted_page
from autosync.api.views.prediction_errors import interval, prediction_errors
from autosync.api.views.schemas import columns_of
from autosync.api.views.tuning_schemas import RankedStrategies, RankedStrategy, Tuning, is_settled
from autosync.search.loop.outcome import DDP, paired_speedup, reporting_half

_KEY = (StrategySummaryRow.sort_seconds, StrategySummaryRow.origin, StrategySummaryRow.position)


RANKING_SORTS = {
    "step_seconds": SortKey(StrategySummaryRow.step_seconds, nullable=True),
    "predicted_seconds": SortKey(StrategySummaryRow.predicted_seconds),
    "spread": SortKey(StrategySummaryRow.spread, nullable=True),
    "origin": SortKey(StrategySummaryRow.origin, str),
}
RANKING_STATES: dict[str, ColumnElement[bool]] = {
    "measured": StrategySummaryRow.step_seconds.is_not(None),
    "confirmed": StrategySummaryRow.confirmed.is_(True),
    "failed": and_(
        StrategySummaryRow.step_seconds.is_(None), StrategySummaryRow.error.is_not(None)
    ),
    "waiting": and_(StrategySummaryRow.step_seconds.is_(None), StrategySummaryRow.error.is_(None)),
}
"""What may be asked of a ranking beside its words."""


@dataclass(frozen=True, slots=True)
class RankingFilter:
    """Which strategies of a tuning, and in which order. Empty fields take all.

    text: words in the strategy's description or in what proposed it. state: one of
    RANKING_STATES. sort: one of RANKING_SORTS, with `-` before it for the largest first.
    """

    text: str = ""
    state: str = ""
    sort: str = "step_seconds"

    def __post_init__(self) -> None:
        check_state(self.state, RANKING_STATES)

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.state:
            yield RANKING_STATES[self.state]
        said = func.lower(StrategyRow.words + " " + StrategySummaryRow.origin)
        for word in searched_words(self.text):
            yield said.contains(word, autoescape=True)


WHOLE_RANKING = RankingFilter()


def searched_words(text: str) -> list[str]:
    """What a reader looks for, word by word."""
    return text.lower().split()


@dataclass(frozen=True, slots=True)
class ConfirmedSpeedup:
    """Of one finalist: percentile 10, median and percentile 90. repeats: the baseline's seconds by
    its own, in each repeat."""

    low: float
    median: float
    high: float
    repeats: tuple[float, ...]


def ranked_strategies(
    session: Session,
    tuning_id: str,
    limit: int | None = None,
    cursor: str | None = None,
) -> RankedStrategies:
    """Proposed strategies: measured ones first, the fastest on top, then those that wait or
    failed. The same judgement as `autosync.search.loop.outcome.rank_measured`.

    limit: how many, at most; by default all. cursor: `next` of the page before.

    Raises:
        NotFound: no such tuning. InvalidInput: the cursor is none of this list.
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    query, ahead = _of(tuning_id).order_by(*_KEY), 0
    if cursor:
        ahead, *key = read_cursor(cursor, int, float, str, int)
        query = query.where(tuple_(*_KEY) > tuple(key))
    if limit is not None:
        query = query.limit(limit + 1)
    rows = session.execute(query).all()
    shown, following = one_page(rows, limit, lambda row: (ahead + len(rows) - 1, *_key(row[0])))
    ranks = range(ahead + 1, ahead + 1 + len(shown))
    return _page(session, tuning, shown, ranks, following)


def found_strategies(
    session: Session,
    tuning_id: str,
    limit: int,
    cursor: str | None = None,
    wanted: RankingFilter = WHOLE_RANKING,
) -> RankedStrategies:
    """A page of those that the filter takes, each with its rank among all. cursor: `next` of the
    page before.

    Raises:
        NotFound: no such tuning. InvalidInput: there is no such sort, or the cursor is of another
            list.
    """
    if wanted == WHOLE_RANKING:
        return ranked_strategies(session, tuning_id, limit, cursor)
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    query = _of(tuning_id).where(*wanted.conditions())
    rows, following = sorted_page(
        session,
        query,
        RANKING_SORTS,
        wanted.sort,
        StrategySummaryRow.strategy_id,
        limit,
        cursor,
    )
    found = [row[:2] for row in rows]
    return _page(session, tuning, found, _ranks(session, tuning_id, found), following)


def _page(
    session: Session,
    tuning: TuningRow,
    rows: Sequence[Any],
    ranks: Sequence[int],
    following: str | None,
) -> RankedStrategies:
    return RankedStrategies(
        tuning_id=tuning.id,
        byte_scale=tuning.byte_scale,
        time_scale=tuning.time_scale,
        items=_ranked(session, tuning.id, rows, ranks),
        next=following,
    )


def _ranks(session: Session, tuning_id: str, rows: Sequence[Any]) -> list[int]:
    """The place of each of these rows of `_of` in the whole ranking."""
    place = func.row_number().over(order_by=_KEY).label("place")
    numbered = (
        select(StrategySummaryRow.strategy_id, place)
        .where(StrategySummaryRow.tuning_id == tuning_id)
        .subquery()
    )
    shown = [row.strategy_id for row, _ in rows]
    query = select(numbered.c.strategy_id, numbered.c.place)
    found = dict(session.execute(query.where(numbered.c.strategy_id.in_(shown))).all())
    return [found[key] for key in shown]


def ranked_strategy(session: Session, tuning_id: str, strategy_id: str) -> RankedStrategy | None:
    """One of a tuning's strategies with its place in the ranking; None: it has not proposed it."""
    query = _of(tuning_id).where(StrategySummaryRow.strategy_id == strategy_id)
    row = session.execute(query).first()
    if row is None:
        return None
    ahead = (
        select(func.count())
        .select_from(StrategySummaryRow)
        .where(StrategySummaryRow.tuning_id == tuning_id, tuple_(*_KEY) < _key(row[0]))
    )
    (ranked,) = _ranked(session, tuning_id, [row], [1 + (session.scalar(ahead) or 0)])
    return ranked


def ranked_count(session: Session, tuning_id: str) -> int:
    """How many strategies a tuning has proposed."""
    query = select(func.count()).select_from(StrategySummaryRow)
    return session.scalar(query.where(StrategySummaryRow.tuning_id == tuning_id)) or 0


def ddp_strategy(session: Session, tuning_id: str) -> StrategySummaryRow | None:
    """torch's own DDP, as this tuning proposed it; None before it did."""
    query = (
        select(StrategySummaryRow)
        .where(StrategySummaryRow.tuning_id == tuning_id, StrategySummaryRow.origin == DDP)
        .order_by(StrategySummaryRow.position)
    )
    return session.scalars(query.limit(1)).first()


def baseline_strategy(session: Session, tuning_id: str) -> StrategySummaryRow | None:
    """What speed-ups are over: DDP; where all its trials failed, the first of the confirmation, if
    there is one. None before DDP was proposed."""
    ddp = ddp_strategy(session, tuning_id)
    if ddp is None or ddp.step_seconds is not None:
        return ddp
    other = session.scalar(first_confirmed(ProposalRow.strategy_id, literal(tuning_id)))
    return ddp if other is None else session.get_one(StrategySummaryRow, (tuning_id, other))


def baseline_name(session: Session, tuning: Tuning) -> str:
    """What speed-ups are over, in a word: of the answer, before there is one of the ranking."""
    if tuning.result is not None:
        return tuning.result.compared_with
    base = baseline_strategy(session, tuning.id)
    return "DDP" if base is None or base.origin == DDP else base.origin


def first_confirmed(
    column: SQLColumnExpression[str], tuning_id: SQLColumnExpression[str]
) -> Select[str]:
    """A column of the first proposal of a tuning's confirmation, which is its baseline's."""
    return (
        select(column)
        .where(ProposalRow.tuning_id == tuning_id, ProposalRow.phase == "confirm")
        .order_by(ProposalRow.position)
        .limit(1)
    )


def confirmed_spread(tuning_id: SQLColumnExpression[str]) -> ColumnElement[float | None]:
    """The larger spread of a finished tuning's answer and baseline; joins outcome and strategy of
    the answer."""
    of_tuning = select(StrategySummaryRow.spread).where(
        StrategySummaryRow.tuning_id == tuning_id, StrategySummaryRow.confirmed
    )
    answer = of_tuning.where(
        StrategySummaryRow.strategy_id == StrategyRow.strategy_id
    ).scalar_subquery()
    baseline = (
        of_tuning.where(StrategySummaryRow.origin == OutcomeRow.baseline)
        .order_by(StrategySummaryRow.position)
        .limit(1)
        .scalar_subquery()
    )
    return func.coalesce(case((answer > baseline, answer), else_=baseline), answer)


def ddp_error_of(tuning_id: SQLColumnExpression[str]) -> ScalarSelect[str | None]:
    """How DDP's first trial failed, `kind: message`; null where one was measured."""
    return (
        select(StrategySummaryRow.error)
        .where(
            StrategySummaryRow.tuning_id == tuning_id,
            StrategySummaryRow.origin == DDP,
            StrategySummaryRow.step_seconds.is_(None),
        )
        .order_by(StrategySummaryRow.position)
        .limit(1)
        .scalar_subquery()
    )


def measured_ddp_seconds(session: Session, tuning: Tuning) -> float | None:
    """DDP's iteration: of the answer, else as it is ranked so far; None before its first trial, and
    where its trials failed."""
    if tuning.result is not None:
        return tuning.result.ddp_seconds
    ddp = ddp_strategy(session, tuning.id)
    return None if ddp is None else ddp.step_seconds


def _of(tuning_id: str) -> Select[Any]:
    """A summary and its words."""
    columns: tuple[Any, ...] = (StrategySummaryRow, StrategyRow.words)
    return (
        select(*columns)
        .join(StrategyRow, StrategyRow.hash == StrategySummaryRow.strategy_hash)
        .where(StrategySummaryRow.tuning_id == tuning_id)
    )


def _key(row: StrategySummaryRow) -> tuple[float, str, int]:
    return row.sort_seconds, row.origin, row.position


def _ranked(
    session: Session,
    tuning_id: str,
    rows: Sequence[Any],
    ranks: Sequence[int],
) -> list[RankedStrategy]:
    """rows: of `_of`."""
    base = baseline_strategy(session, tuning_id)
    shown = [row.strategy_id for row, _ in rows if row.confirmed]
    confirmed: dict[str, ConfirmedSpeedup] = {}
    errors = prediction_errors(session, tuning_id)
    if base and base.confirmed and shown:
        repeats = _repeats(session, tuning_id, [base.strategy_id, *shown])
        confirmed = confirmed_speedups(repeats, base.strategy_id)
    return [
        RankedStrategy.model_validate(
            {
                **columns_of(row, RankedStrategy),
                **_speedup(row, base, confirmed.get(row.strategy_id)),
                **interval(errors, row.predicted_seconds),
                "rank": rank,
                "words": words,
                "is_ddp": row.origin == DDP,
                "is_baseline": base is not None and row.strategy_id == base.strategy_id,
                "settled": is_settled(row.spread) and (base is None or is_settled(base.spread)),
            }
        )
        for rank, (row, words) in zip(ranks, rows, strict=True)
    ]


def _speedup(
    row: StrategySummaryRow, base: StrategySummaryRow | None, confirmed: ConfirmedSpeedup | None
) -> dict[str, float | None]:
    """Over the baseline: repeat by repeat where both were confirmed, else of the medians of the
    search (percentiles alike)."""
    low = median = high = None
    if confirmed is not None:
        low, median, high = confirmed.low, confirmed.median, confirmed.high
    elif base and base.strategy_id != row.strategy_id and base.search_seconds and row.step_seconds:
        low = median = high = base.search_seconds / row.step_seconds
    return {"speedup_low": low, "speedup": median, "speedup_high": high}


def _repeats(
    session: Session, tuning_id: str, strategy_ids: list[str]
) -> Iterable[tuple[str, int, float]]:
    """Strategy, repeat and step seconds of the confirmation's trials."""
    query = (
        select(ProposalRow.strategy_id, ProposalRow.round, TrialRow.step_seconds)
        .join(
            TrialRow,
            (TrialRow.tuning_id == ProposalRow.tuning_id) & (TrialRow.key == ProposalRow.key),
        )
        .where(ProposalRow.tuning_id == tuning_id, ProposalRow.strategy_id.in_(strategy_ids))
        .where(ProposalRow.phase == "confirm", TrialRow.step_seconds > 0.0)
    )
    return [(strategy_id, n, seconds or 0.0) for strategy_id, n, seconds in session.execute(query)]


def confirmed_speedups(
    repeats: Iterable[tuple[str, int, float]], baseline_id: str
) -> dict[str, ConfirmedSpeedup]:
    """By strategy, of the repeats that did not choose the winner; what has no repeat in common with
    the baseline is left out.

    repeats: strategy, repeat and step seconds of trials of a confirmation.
    """
    seconds: dict[str, dict[int, float]] = {}
    for strategy_id, repeat, step_seconds in repeats:
        seconds.setdefault(strategy_id, {})[repeat] = step_seconds
    base = seconds.pop(baseline_id, {})
    found = {}
    for strategy_id, mine in seconds.items():
        if both := sorted(mine.keys() & base.keys()):
            reporting = reporting_half(both)
            theirs, ours = [base[i] for i in reporting], [mine[i] for i in reporting]
            ratios = tuple(t / o for t, o in zip(theirs, ours, strict=True))
            found[strategy_id] = ConfirmedSpeedup(*paired_speedup(theirs, ours), ratios)
    return found
