"""One strategy's iteration, predicted and measured, side by side."""

from dataclasses import asdict, dataclass
from math import isfinite

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain
from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import OutcomeRow, ProposalRow, StrategyRow, TrialRow, TuningRow
from autosync.api.views.timeline_schemas import Timeline, TimelineIteration, TimelineMessage
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.plan import plan_of
from autosync.population import encode
from autosync.search.loop.outcome import is_ddp
from autosync.simulator.binding import assumed_iteration, binding_of
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.iteration_trace import (
    IterationTrace,
    chrome_trace,
    predicted_iteration,
)
from autosync.simulator.timeline.trace_comparison import (
    Difference,
    differences,
    measured_iteration,
    queue_head_seconds,
)
from autosync.strategy import Strategy
from autosync.trials.contract import MeasuredTimeline


@dataclass(frozen=True, slots=True)
class RecordedTimelines:
    """A strategy of a tuning with the timeline of its trial `key`, if one recorded it."""

    tuning_id: str
    strategy: Strategy
    words: str
    domain: Domain
    key: str | None
    timeline: MeasuredTimeline | None


@dataclass(frozen=True, slots=True)
class ComparedIterations:
    """measured: None where nothing was recorded; without messages under torch's own DDP.
    peak_bytes: predicted, of each rank. binding: what shortens the predicted iteration most
    where it is faster."""

    predicted: IterationTrace
    measured: IterationTrace | None
    peak_bytes: tuple[float, ...]
    binding: str

    @property
    def differences(self) -> tuple[Difference, ...]:
        return differences(self.predicted, self.measured) if self.measured else ()

    def chrome(self) -> str:
        """Both for Chrome's trace viewer."""
        if self.measured is None:
            return chrome_trace(predicted=self.predicted)
        return chrome_trace(predicted=self.predicted, measured=self.measured)


def recorded(session: Session, tuning_id: str, strategy_id: str | None = None) -> RecordedTimelines:
    """What the tuning recorded of a strategy; by default of its answer, or before that of DDP,
    which is tried first.

    Raises:
        NotFound: no such tuning, or it has not proposed the strategy (or any).
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    row = found(
        _proposed(session, tuning_id, strategy_id),
        thing="strategy",
        key=strategy_id or "",
        remedy=f"GET /v1/tunings/{tuning_id}/strategies lists them.",
        message=f"tuning {tuning_id} has proposed no strategy {(strategy_id or '')[:80]!r}.",
    )
    trial = session.execute(
        select(TrialRow.key, TrialRow.domain_id, TrialRow.timeline)
        .where(TrialRow.tuning_id == tuning_id, TrialRow.strategy_id == row.strategy_id)
        .where(TrialRow.timeline.is_not(None))
        .order_by(TrialRow.position.desc())
    ).first()
    key, domain_id, document = trial or (None, tuning.domain_id, None)
    return RecordedTimelines(
        tuning_id=tuning_id,
        strategy=from_json(Strategy, row.document),
        words=row.words,
        domain=load_domain(session, domain_id),
        key=key,
        timeline=None if document is None else from_json(MeasuredTimeline, document),
    )


def _proposed(session: Session, tuning_id: str, strategy_id: str | None) -> StrategyRow | None:
    query = (
        select(StrategyRow)
        .join(ProposalRow, ProposalRow.strategy_hash == StrategyRow.hash)
        .where(ProposalRow.tuning_id == tuning_id)
        .order_by(ProposalRow.position)
    )
    if strategy_id is not None:
        if not strategy_id.isalnum():  # PostgreSQL refuses some characters
            return None
        query = query.where(StrategyRow.strategy_id == strategy_id)
    elif (outcome := session.get(OutcomeRow, tuning_id)) is not None:
        query = query.where(StrategyRow.hash == outcome.strategy_hash)
    return session.scalars(query.limit(1)).first()


def compared(of: RecordedTimelines) -> ComparedIterations:
    """The prediction for the strategy's plan beside what was measured of it."""
    population = encode([of.strategy], of.domain)
    plans = compile_plans_fast(population, of.domain)
    predicted = predicted_iteration(plans, population, of.domain)
    peaks = tuple(memory_of(of.domain).peak_bytes(plans, population)[0].tolist())
    binding = binding_of(assumed_iteration(plans, population, of.domain, 0)).resource
    if of.timeline is None:
        return ComparedIterations(predicted, None, peaks, binding)
    plan = plan_of(plans, population, 0, of.domain)
    return ComparedIterations(predicted, measured_iteration(of.timeline, plan), peaks, binding)


def trace(session: Session, tuning_id: str, strategy_id: str | None) -> str:
    """Chrome's trace of what `recorded` finds; raises NotFound as it does."""
    return compared(recorded(session, tuning_id, strategy_id)).chrome()


def timeline(session: Session, tuning_id: str, strategy_id: str | None) -> Timeline:
    """What `recorded` finds beside its prediction; raises NotFound as it does."""
    return timeline_of(recorded(session, tuning_id, strategy_id))


def timeline_of(of: RecordedTimelines) -> Timeline:
    """What was recorded beside its prediction."""
    both = compared(of)
    devices = device_memory_bytes(of.domain).tolist()
    return Timeline(
        tuning_id=of.tuning_id,
        strategy_id=of.strategy.id,
        words=of.words,
        is_ddp=is_ddp(of.strategy),
        trial=of.key,
        clock=of.timeline.clock if of.timeline else None,
        predicted=_iteration(both.predicted),
        binding=both.binding,
        measured=_iteration(both.measured) if both.measured else None,
        differences=list(both.differences),
        predicted_peak_bytes=[int(peak) for peak in both.peak_bytes],
        device_memory_bytes=[int(size) if isfinite(size) else None for size in devices],
    )


def _iteration(trace: IterationTrace) -> TimelineIteration:
    turn_seconds = queue_head_seconds(trace)
    messages = [
        TimelineMessage(**asdict(message), turn_seconds=turn_seconds[message.message])
        for message in trace.messages
    ]
    return TimelineIteration(
        step_seconds=trace.step_seconds,
        compute=list(trace.compute),
        messages=messages or None,
        deals=list(trace.deals),
    )
