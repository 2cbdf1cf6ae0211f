"""Who meets in a contest, and where: contestants, the workers that they share, and their trials."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.loop.settings import Settings
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.strategy import Strategy
from autosync.trials.contract import Pool, TrialRequest, TrialResult
from benchmarks.contest.competitors import NO_SIZE, Competitor
from benchmarks.contest.contest_records import ContestFile, ContestRow, Kind
from benchmarks.contest.unseen_simulator import unseen_simulator

COUNTS = (12, 20, 60)
"""Trials after which competitors are compared."""
USUAL = Settings()
"""How a tuning searches unless it is told otherwise."""
BASELINES = "baselines=benchmarks.workers:build_baselines"
PLAN = "plan"
"""The mode of what the bundle says: the runtime, or torch's DDP."""


class OutOfTime(Exception):
    """The minutes are spent; what was measured is stored."""


@dataclass(frozen=True, slots=True)
class ContestSettings:
    """trials: of each competitor. tunes: AutoSync does. deadline: of `time.monotonic`. search: how
    a tuning searches, but for its budget. budgets: after how many trials competitors are
    compared."""

    trials: int
    repeats: int
    competitors: tuple[Competitor, ...]
    tunes: bool
    deadline: float
    search: Settings = USUAL
    budgets: tuple[int, ...] = COUNTS

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(sorted({min(count, self.trials) for count in self.budgets}))

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise OutOfTime


@dataclass(frozen=True, slots=True)
class Contestant:
    """mode: of `benchmarks.workers`, who runs the strategy. size_mib: its setting, 0 without."""

    label: str
    mode: str
    strategy: Strategy
    size_mib: float = NO_SIZE

    @property
    def key(self) -> str:
        return f"{self.mode}:{self.strategy.id}"


class BorrowedPool:
    """A pool that stays open when the tuning that uses it is done. name: of the tuning, so that
    another one's trial of the same strategy is not taken for its own."""

    def __init__(self, pool: Pool, name: str) -> None:
        self._pool, self._name = pool, name

    @property
    def description(self) -> str:
        return self._pool.description

    def run(self, request: TrialRequest) -> TrialResult:
        result = self._pool.run(replace(request, key=f"{self._name}/{request.key}"))
        return replace(result, key=request.key)

    def close(self) -> None:
        """Whoever opened the pool closes it."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Where the competitors of one domain meet."""

    given: CollectionTarget
    domain: Domain
    pool: Pool
    folder: Path
    file: ContestFile
    settings: ContestSettings

    def measured(
        self, kind: Kind, competitor: str, number: int, contestant: Contestant, passes: int
    ) -> ContestRow:
        """Run one trial, or raise OutOfTime before it; its row is stored."""
        self.settings.check_time()
        result = self.pool.run(
            TrialRequest(
                f"{contestant.mode}/{kind}/{competitor}/{contestant.strategy.id}/{number}",
                make_bundle(contestant.strategy, self.domain),
                warmup=self.given.warmup,
                iterations=self.given.iterations,
                passes=passes,
                timeout_seconds=Settings().timeout_seconds,
            )
        )
        row = row_of(kind, competitor, number, contestant, result, self.given.warmup)
        self.file.add(row)
        return row

    def simulator(self) -> LearnedSimulator:
        """What a tuning begins with: it has seen no domain of this model."""
        return unseen_simulator(self.domain, self.folder)

    def say(self, text: str) -> None:
        left = f"{max(0.0, self.settings.deadline - time.monotonic()):,.0f} s left"
        print(f"{self.given.name}: {text}; {left}", flush=True)


def row_of(
    kind: Kind,
    competitor: str,
    number: int,
    contestant: Contestant,
    result: TrialResult,
    warmup: int,
) -> ContestRow:
    error = f"{result.error.kind}: {result.error.message[:300]}" if result.error else ""
    return ContestRow(
        kind,
        competitor,
        number,
        contestant.size_mib,
        contestant.mode,
        contestant.strategy.id,
        contestant.label,
        result.step_seconds,
        result.spread,
        result.load,
        error,
        result.launcher,
        warmup,
        len(result.iteration_seconds),
    )


def in_ms(seconds: float | None) -> str:
    return "failed" if seconds is None else f"{seconds * 1e3:.1f} ms"
