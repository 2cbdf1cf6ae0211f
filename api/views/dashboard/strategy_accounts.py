"""Why a strategy takes as long as it does in a tuning's domain: what an account beside DDP's shows.

Loads the compiled simulator: import it only when asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain
from autosync.api.db.lookup import stored
from autosync.api.db.tables import TrialRow, TuningRow
from autosync.api.views import timeline_views
from autosync.api.views.dashboard.strategy_labels import (
    ORDERS,
    StrategyLabel,
    label_of,
    remembered,
)
from autosync.api.views.dashboard.tuning_comparison import ComparedFact
from autosync.api.views.prediction_errors import FEWEST_MEASURED, predicted_words
from autosync.api.views.prediction_ranges import calibrate, predicted_ranges
from autosync.api.views.rankings import ranked_strategies, ranked_strategy
from autosync.api.views.timeline_schemas import Timeline
from autosync.api.views.tuning_schemas import RankedStrategy
from autosync.documents import from_json
from autosync.population import encode
from autosync.search.loop.outcome import is_ddp
from autosync.search.space import Space
from autosync.simulator.explanation import Explanation, explain
from autosync.simulator.limit import Limit, iteration_limit
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy
from autosync.units import MIB, bytes_in_words, milliseconds, percent_in_words


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """Between which seconds nine of ten measurements are expected. source: who says so."""

    low_seconds: float
    high_seconds: float
    source: str


@dataclass(frozen=True, slots=True)
class StrategyAccount:
    """prediction: where the iteration's time goes by the timeline simulator. shown_limit_seconds:
    of what the timeline shows, an update's last batch. row: its place in the ranking, with what
    ranked it. expected: around the row's prediction; None without a row. sent_bytes: of each
    node's NIC in one iteration of a trial, as counted: headers included, at byte_scale.
    peak_memory_bytes: of a trial's processes; None where no trial measured it. nodes: addresses."""

    strategy_id: str
    label: StrategyLabel
    words: str
    is_ddp: bool
    row: RankedStrategy | None
    expected: ExpectedRange | None
    strategy: Strategy
    nodes: tuple[str, ...]
    prediction: Explanation
    shown_limit_seconds: float
    timeline: Timeline
    sent_bytes: tuple[int, ...]
    byte_scale: float
    peak_memory_bytes: int | None


_LIMITS: dict[tuple[str, str], Limit] = {}
_PREDICTIONS: dict[tuple[str, str], Explanation] = {}


def limit_of(session: Session, tuning_id: str) -> Limit:
    """No strategy that the tuning may take iterates in fewer seconds; raises NotFound."""
    row = stored(session, TuningRow, tuning_id, "tuning")
    domain_id, space = row.domain_id, row.space
    return remembered(
        _LIMITS,
        (domain_id, space),
        lambda: iteration_limit(load_domain(session, domain_id), from_json(Space, space)),
    )


def strategy_account(
    session: Session, tuning_id: str, strategy_id: str | None = None
) -> StrategyAccount:
    """By default of the tuning's answer, or before that of DDP; raises NotFound."""
    of = timeline_views.recorded(session, tuning_id, strategy_id)
    of_tuning = session.get_one(TuningRow, tuning_id)
    limit = limit_of(session, tuning_id)
    key = of.strategy.id
    prediction = remembered(
        _PREDICTIONS, (of.domain.id, key), lambda: explain(of.domain, of.strategy, limit)
    )
    sent, memory = _measured(session, tuning_id, key)
    row = ranked_strategy(session, tuning_id, key)
    return StrategyAccount(
        strategy_id=key,
        label=label_of(of.strategy),
        words=of.words,
        is_ddp=is_ddp(of.strategy),
        row=row,
        expected=_expected(of, row) if row else None,
        strategy=of.strategy,
        nodes=tuple(node.address for node in of.domain.cluster.nodes),
        prediction=replace(prediction, limit_seconds=limit.seconds),
        shown_limit_seconds=limit.last_batch_seconds,
        timeline=timeline_views.timeline_of(of),
        sent_bytes=sent,
        byte_scale=of_tuning.byte_scale,
        peak_memory_bytes=memory,
    )


def _expected(of: timeline_views.RecordedTimelines, row: RankedStrategy) -> ExpectedRange:
    """By the tuning's own measurements; before it has enough, as `autosync rank` does."""
    if row.low_seconds is not None and row.high_seconds is not None:
        own = "by how far this tuning's predictions were off"
        return ExpectedRange(row.low_seconds, row.high_seconds, own)
    domain = of.domain
    calibration = calibrate(domain, "auto", domain.compute_source == "measured")
    population = encode([of.strategy], domain)
    plans = compile_plans_fast(population, domain)
    predicted = [row.predicted_seconds]
    (around,) = predicted_ranges(calibration, domain, population, plans, predicted)
    source = f"by constants {calibration.name}" if calibration.name else "a guess"
    known = f"{source}, until {FEWEST_MEASURED} strategies are measured"
    return ExpectedRange(around.low_seconds, around.high_seconds, known)


def best_other_than_ddp(session: Session, tuning_id: str) -> str | None:
    """The fastest measured strategy that is not torch's own DDP; None before there is one."""
    measured = ranked_strategies(session, tuning_id, 2).items
    found = (each for each in measured if not each.is_ddp and each.step_seconds is not None)
    return next((each.strategy_id for each in found), None)


def compared_facts(
    accounts: Sequence[StrategyAccount], baseline: str = "DDP"
) -> list[ComparedFact]:
    """What they took, what they are, and where their predicted iterations go. baseline: what
    speed-ups are over."""
    named: dict[str, Callable[[StrategyAccount], str]] = {
        "Measured": _measured_words,
        f"Over {baseline}": _speedup_words,
        "Predicted": _predicted_words,
        "Predicted by the timeline": lambda a: milliseconds(a.prediction.step_seconds),
        "Methods": _methods,
        "Messages an iteration": lambda a: f"{a.prediction.messages:,}",
        "Bytes of all messages": lambda a: bytes_in_words(a.prediction.wire_bytes),
        "Order of messages": _order,
        "Slices": _slices,
        "Continues in the next forward pass": lambda a: _yes(a.strategy.schedule.overlap_forward),
        "All-gathers wait for idle links": lambda a: _yes(
            a.strategy.schedule.gather == "when_idle"
        ),
        "Partitioned variables": lambda a: str(sum(len(c.shards) > 1 for c in a.strategy.choices)),
        "Predicted: compute": lambda a: milliseconds(a.prediction.compute_seconds),
        "Predicted: update": lambda a: milliseconds(a.prediction.update_seconds),
        "Predicted: transfer not hidden by compute": lambda a: milliseconds(
            a.prediction.transfer_seconds
        ),
        "Predicted: startups not hidden by compute": lambda a: milliseconds(
            a.prediction.startup_seconds
        ),
        "Predicted: compute slowed by messages": lambda a: milliseconds(
            a.prediction.slowed_seconds
        ),
        "Predicted: bound by": lambda a: a.prediction.binding,
        "Busiest link": _busiest,
        "Predicted: share of the limit": lambda a: percent_in_words(a.prediction.limit_percent),
        "Peak memory, measured": lambda a: bytes_in_words(a.peak_memory_bytes),
    }
    carried = {key for account in accounts for key, _ in account.prediction.extensions}
    named |= {key.capitalize(): partial(_extension, key) for key in sorted(carried)}
    return [
        ComparedFact(name, tuple(words(each) for each in accounts)) for name, words in named.items()
    ]


def _measured(
    session: Session, tuning_id: str, strategy_id: str
) -> tuple[tuple[int, ...], int | None]:
    """Of its newest trial that succeeded."""
    query = (
        select(TrialRow.sent_bytes, TrialRow.peak_memory_bytes)
        .where(TrialRow.tuning_id == tuning_id, TrialRow.strategy_id == strategy_id)
        .where(TrialRow.step_seconds.is_not(None))
        .order_by(TrialRow.position.desc())
        .limit(1)
    )
    row = session.execute(query).first()
    if row is None:
        return (), None
    return tuple(row.sent_bytes or ()), row.peak_memory_bytes


def _measured_words(account: StrategyAccount) -> str:
    row = account.row
    if row is None or row.step_seconds is None:
        return f"failed: {row.error}" if row and row.error else "not yet"
    spread = "" if row.spread is None else f", spread {row.spread:.1%}"
    return f"{milliseconds(row.step_seconds)}{spread}"


def _predicted_words(account: StrategyAccount) -> str:
    row, expected = account.row, account.expected
    if row is None or expected is None:
        return "–"
    return predicted_words(row.predicted_seconds, expected.low_seconds, expected.high_seconds)


def _speedup_words(account: StrategyAccount) -> str:
    row = account.row
    if row is None or row.is_baseline:
        return "–" if row is None else "is the baseline"
    if row.speedup is None:
        return "–"
    if not row.confirmed:
        return f"{row.speedup:.2f}×, not confirmed"
    settled = "" if row.settled else ", not settled"
    return f"{row.speedup:.2f}× ({row.speedup_low:.2f} to {row.speedup_high:.2f}){settled}"


def _methods(account: StrategyAccount) -> str:
    return ", ".join(chip.text for chip in account.label.chips if chip.kind == "method")


def _order(account: StrategyAccount) -> str:
    return ORDERS.get(account.strategy.schedule.order, ORDERS["fifo"])


def _slices(account: StrategyAccount) -> str:
    schedule = account.strategy.schedule
    size = schedule.slice_bytes
    if schedule.order == "ddp" or not size:  # of DDP it is the size of buckets
        return "none"
    return f"{size / MIB:.3g} MiB"


def _busiest(account: StrategyAccount) -> str:
    prediction = account.prediction
    share = prediction.busiest_seconds / prediction.step_seconds
    return f"{prediction.busiest}, {share:.0%} of the iteration"


def _extension(key: str, account: StrategyAccount) -> str:
    return "; ".join(words for own, words in account.prediction.extensions if own == key) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
