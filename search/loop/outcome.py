"""Reports of a tuning: events while it runs, and the outcome at the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
from pydantic import ConfigDict

from autosync.bundle import Bundle, Evidence, make_bundle
from autosync.documents import STRICT
from autosync.domain import Domain
from autosync.search.loop.tuning_store import Candidate, Proposal
from autosync.strategy import EXACT, AllReduce, Strategy
from autosync.torch_engine import DDP_BUCKET_BYTES
from autosync.trials.contract import ErrorKind, TrialResult

T = TypeVar("T")

DDP = "ddp"
"""Name of the builder that keeps torch's own DDP."""


@dataclass(frozen=True, slots=True)
class TuningEvent:
    """Progress: `done` of `total` steps of a phase; best_seconds so far, if any. `waiting` is no
    phase: another process measures on this machine, and the phase goes on after it."""

    kind: Literal["waiting", "opening", "ranking", "search", "confirm", "done"]
    message: str
    done: int = 0
    total: int = 0
    best_seconds: float | None = None


OnEvent = Callable[[TuningEvent], None]


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured strategy of the ranked table.

    step_seconds, spread: the median over its measured iterations, and (p90 - p10) / median; None
        when every trial of it failed, then `error` says how and `error_kind` in a word.
    confirmed: the iterations are of those interleaved repeats that report (`reporting_half`).
    """

    candidate: Candidate
    step_seconds: float | None
    spread: float | None
    trials: int
    confirmed: bool
    error: str = ""
    error_kind: ErrorKind | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a tuning.

    best: the strategy to use; torch's DDP when `keep_ddp`.
    baseline: what the answer is compared with. That is DDP; where DDP ran out of memory, the
        fastest known design that did not.
    best_seconds, baseline_seconds: medians over the `repeats` that did not choose the winner, in
        the domain's time.
    speedup: median, over the same repeats, of the baseline's time by the best's in one repeat.
        speedup_low, speedup_high: 10th and 90th percentile.
    ranked: every measured strategy, fastest first, failures last.
    """

    best: Candidate
    best_seconds: float
    baseline: Candidate
    baseline_seconds: float
    speedup: float
    speedup_low: float
    speedup_high: float
    repeats: int
    keep_ddp: bool
    ranked: tuple[MeasuredRow, ...]
    cancelled: bool = False
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def ddp_seconds(self) -> float | None:
        """DDP's `baseline_seconds`; None where another design is the baseline."""
        return self.baseline_seconds if is_ddp(self.baseline.strategy) else None

    @property
    def ddp_error_kind(self) -> ErrorKind | None:
        """How DDP's trials failed; None where one did not."""
        ddp = next((row for row in self.ranked if is_ddp(row.candidate.strategy)), None)
        return ddp.error_kind if ddp else None

    @property
    def keeps_baseline(self) -> bool:
        """Whether nothing was faster than the baseline beyond noise."""
        return self.best.strategy.id == self.baseline.strategy.id


def shipped_bundle(outcome: Outcome, domain: Domain, measured_on: str) -> Bundle:
    """The answer with what is known of its speed. measured_on: where trials ran, in words."""
    evidence = Evidence(
        predicted_seconds=outcome.best.predicted_seconds,
        step_seconds=outcome.best_seconds,
        ddp_step_seconds=outcome.ddp_seconds,
        measured_on=measured_on,
        accumulate=domain.accumulate,
    )
    return make_bundle(outcome.best.strategy, domain, evidence)


def strategy_id(proposal: Proposal) -> str:
    return proposal.candidate.strategy.id


def rank_measured(
    proposals: Sequence[Proposal], trials: Sequence[TrialResult]
) -> tuple[MeasuredRow, ...]:
    """The ranked table. A strategy confirmed in interleaved repeats is judged by those of them that
    report, so that its seconds are those of the reported speed-up."""
    by_key = {trial.key: trial for trial in trials}
    found: dict[str, list[tuple[Proposal, TrialResult]]] = {}
    for proposal in proposals:
        if proposal.key in by_key:
            found.setdefault(strategy_id(proposal), []).append((proposal, by_key[proposal.key]))
    rows = [_row(measured) for measured in found.values()]
    return tuple(
        sorted(rows, key=lambda row: (row.step_seconds is None, row.step_seconds, _origin(row)))
    )


def _origin(row: MeasuredRow) -> str:
    return row.candidate.origin


def _row(measured: list[tuple[Proposal, TrialResult]]) -> MeasuredRow:
    candidate = measured[0][0].candidate
    confirming = [
        trial
        for proposal, trial in measured
        if proposal.phase == "confirm" and trial.step_seconds is not None
    ]
    judged = reporting_half(confirming) or [trial for _, trial in measured]
    seconds = [second for trial in judged for second in trial.iteration_seconds]
    if not seconds:
        error = next(trial.error for trial in judged if trial.error)
        words = f"{error.kind}: {error.message}"
        return MeasuredRow(candidate, None, None, len(measured), False, words, error.kind)
    low, median, high = np.percentile(seconds, [10, 50, 90])
    spread = float((high - low) / median)
    return MeasuredRow(candidate, float(median), spread, len(measured), bool(confirming))


def choosing_half(repeats: Sequence[T]) -> Sequence[T]:
    """Of a strategy's repeats, in their order, those that choose the winner: the first half; all
    where there is one."""
    return repeats[: len(repeats) // 2 or len(repeats)]


def reporting_half(repeats: Sequence[T]) -> Sequence[T]:
    """Of a strategy's repeats, in their order, those that had no part in choosing the winner. All
    that is reported of a confirmed strategy is of these. A single repeat does both."""
    return repeats[len(repeats) // 2 :]


def paired_speedup(ddp: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """10th percentile, median and 90th percentile of DDP's time by the other's, repeat by repeat.

    ddp, other: `(repeats,)` seconds of runs that alternated.
    """
    low, median, high = np.percentile(np.asarray(ddp) / np.asarray(other), [10, 50, 90])
    return float(low), float(median), float(high)


def is_ddp(strategy: Strategy) -> bool:
    """Whether it is torch's DDP with its own sizes of buckets: no communication hook packs its
    messages, and it carries nothing of an extension."""
    schedule = strategy.schedule
    if schedule.order != "ddp" or strategy.extensions:
        return False
    if schedule.slice_bytes not in (0, DDP_BUCKET_BYTES):
        return False
    if schedule.ddp is not None and schedule.ddp.bucket_limits_bytes:
        return False
    shards = (shard for choice in strategy.choices for shard in choice.shards)
    return all(isinstance(shard, AllReduce) and shard.encoding == EXACT for shard in shards)
