"""Which passes of a domain are missing, and running them in blocks that end with a control.

A pass is one measurement of one strategy. The control is a known strategy that runs after every
block; when its seconds drift, the passes of the block are measured again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

import numpy as np

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.population import concatenate, decode, encode
from autosync.search.collect.collection_log import (
    CONTROL,
    CONTROL_ORIGIN,
    CollectedStrategy,
    CollectionLog,
    PassKey,
)
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.selection import distinct_rows
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.message_digests import digests_of_strategies
from autosync.trials.contract import Pool, TrialRequest, TrialResult
from autosync.trials.measurement import LOAD_LIMIT
from autosync.trials.trial_procedure import PASS_TOLERANCE

PASSES = (1, 2, 3)
"""The third only where the first two differ by more than `PASS_TOLERANCE`."""

CONTROL_EVERY = 20
CONTROL_TOLERANCE = 0.05
TIMEOUT_SECONDS = 60.0
"""Of a pass at time scale 1."""

ReportLine = Callable[[str], None]


def strategies_of(
    domain: Domain,
    count: int,
    seed: int,
    measured: Sequence[CollectedStrategy] = (),
    picks: Sequence[CollectedStrategy] = (),
) -> list[CollectedStrategy]:
    """The measured strategies, then hand-designed ones, then sampled ones up to `count`.

    The messages of a new strategy differ from those of all others, including picks. So a collection
    stays complete when designs are added or the sampler changes; a larger `count` only adds.

    measured: strategies of the domain other than picks. picks: not counted in `count`.
    """
    missing = count - len(measured)
    if missing <= 0:
        return list(measured[:count])
    named = hand_designed(domain, Space())
    designs = [CollectedStrategy(name, strategy) for name, strategy in named]
    options = concatenate(
        [
            encode([one.strategy for one in designs], domain),
            sample(domain, Space(), 0, 2 * count, seed),
        ]
    )
    known = digests_of_strategies(domain, [one.strategy for one in (*measured, *picks)])
    rows = distinct_rows(domain, options, known)[:missing].tolist()
    return [
        *measured,
        *(designs[row] for row in rows if row < len(designs)),
        *(
            CollectedStrategy("sampled", decode(options, row, domain))
            for row in rows
            if row >= len(designs)
        ),
    ]


@dataclass(frozen=True, slots=True)
class OccasionPasses:
    """What there is to measure on one occasion of a domain.

    numbers: of the passes, in their order.
    """

    domain_id: str
    occasion: int
    strategies: tuple[CollectedStrategy, ...]
    seed: int
    numbers: tuple[int, ...] = PASSES

    def pending(self, log: CollectionLog) -> list[tuple[PassKey, CollectedStrategy]]:
        """What is missing of the first pass that is not complete, in that pass's order."""
        for number in self.numbers:
            order = sorted(self.strategies, key=partial(self._place, number))
            keys = [PassKey(self.domain_id, self.occasion, number, c.strategy.id) for c in order]
            todo = [
                (key, one)
                for key, one in zip(keys, order, strict=True)
                if key not in log and (number < 3 or _differ(log, key))
            ]
            if todo:
                return todo
        return []

    def _place(self, number: int, one: CollectedStrategy) -> bytes:
        """Where in a pass: at random, and the same whatever else there is to measure."""
        text = f"{self.seed}/{self.domain_id}/{self.occasion}/{number}/{one.strategy.id}"
        return blake2b(text.encode()).digest()

    def left(self, log: CollectionLog) -> int:
        """How many passes are missing, third ones not counted."""
        return sum(
            PassKey(self.domain_id, self.occasion, number, one.strategy.id) not in log
            for number in self.numbers
            if number < PASSES[-1]
            for one in self.strategies
        )

    def unreliable(self, log: CollectionLog) -> list[PassKey]:
        """Passes that failed, or ran beside other load."""
        keys = [
            PassKey(self.domain_id, self.occasion, number, one.strategy.id)
            for number in self.numbers
            for one in self.strategies
        ]
        return [
            key
            for key in keys
            if key in log and (log.seconds(key) is None or log.other_load(key) > LOAD_LIMIT)
        ]


def _differ(log: CollectionLog, key: PassKey) -> bool:
    """Whether the first two passes ran and disagree."""
    one, two = (log.seconds(key._replace(number=number)) for number in (1, 2))
    return one is not None and two is not None and abs(one / two - 1) > PASS_TOLERANCE


@dataclass(slots=True)
class PassRunner:
    """Runs blocks of trials on a pool, each followed by a control."""

    target: CollectionTarget
    domain: Domain
    pool: Pool
    log: CollectionLog
    report: ReportLine
    stopped: Callable[[], bool]
    _number: int = 0
    _seconds: float = 0.0

    def run_all(self, passes: OccasionPasses) -> None:
        """Run all missing passes, and repeat once those that failed or ran beside other load."""
        while todo := passes.pending(self.log) or self._once_more(passes):
            for start in range(0, len(todo), CONTROL_EVERY):
                if self.stopped():
                    return
                self._run_block(todo[start : start + CONTROL_EVERY])
                if self._seconds:  # else it was stopped before its first trial
                    self._report_progress(todo[0][0].number, passes)

    def _report_progress(self, number: int, passes: OccasionPasses) -> None:
        missing = replace(passes, numbers=(number,)).left(self.log)
        every, rate = len(passes.strategies), self._number / self._seconds
        left = passes.left(self.log) / rate / 60
        self.report(
            f"  pass {number}: {every - missing} of {every}, {rate * 3600:.0f} passes an hour, "
            f"{left:.0f} min left"
        )

    def _run_block(self, todo: list[tuple[PassKey, CollectedStrategy]]) -> None:
        """Measure, then run the control; where that has drifted twice, all is measured again."""
        done = []
        begun = time.monotonic()
        for key, one in todo:
            if self.stopped():
                break
            self._run_trial(key, one)
            done.append(key)
        if not done:
            return
        agrees = self._control_agrees(done) or self._control_agrees(done)
        self._seconds += time.monotonic() - begun
        if not agrees and (voided := self.log.void_once(done)):
            self.report(f"  the control has drifted: {len(voided)} of them are measured again")

    def _once_more(self, passes: OccasionPasses) -> list[tuple[PassKey, CollectedStrategy]]:
        """Forget what failed or ran beside other load, each pass once; returns what is pending."""
        voided = self.log.void_once(passes.unreliable(self.log))
        if voided:
            self.report(f"  {len(voided)} passes failed or ran beside other load: once more")
        return passes.pending(self.log)

    def _control_agrees(self, done: list[PassKey]) -> bool:
        """Run the control; whether it agrees with the median of those before it, where there are
        three.

        Raises:
            AutosyncError: it fails, and again. What else failed since the last one is forgotten.
        """
        earlier = self.log.control_seconds(self.domain.id)
        control = CollectedStrategy(CONTROL_ORIGIN, known_designs.all_reduce_25mb(self.domain))
        key = done[0]._replace(number=CONTROL, strategy_id=control.strategy.id)
        for _ in range(2):
            result = self._run_trial(key, control)
            if result.step_seconds is not None:
                ratio = result.step_seconds / float(np.median(earlier)) if earlier else 1.0
                return len(earlier) < 3 or abs(ratio - 1) <= CONTROL_TOLERANCE
        self.log.void([each for each in done if self.log.seconds(each) is None])
        error = result.error
        raise AutosyncError(
            f"{self.target.name}: the control, an all-reduce, failed twice"
            + (f": {error.kind}: {error.message}" if error else "."),
            thing="control",
            value=control.strategy.id,
            remedy="Fix that. The same command resumes and measures again what failed.",
        )

    def _run_trial(self, key: PassKey, collected: CollectedStrategy) -> TrialResult:
        self._number += 1
        request = TrialRequest(
            key=f"{key}/{self._number}",
            bundle=make_bundle(collected.strategy, self.domain),
            warmup=self.target.warmup,
            iterations=self.target.iterations,
            timeout_seconds=TIMEOUT_SECONDS * max(1.0, self.target.scales[1]),
        )
        measured_at = time.time()
        result = self.pool.run(request)
        self.log.record(key, collected, measured_at, result)
        return result
