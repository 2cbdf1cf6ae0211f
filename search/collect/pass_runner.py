"""Runs a collection's passes in blocks, each followed by a control: a strategy that is known."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.collect.collected_strategy import CollectedStrategy
from autosync.search.collect.collection_log import CONTROL, CONTROL_ORIGIN, CollectionLog, PassKey
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.collect.remaining_passes import OccasionPasses
from autosync.search.designs import known_designs
from autosync.trials.contract import Pool, TrialRequest, TrialResult

CONTROL_EVERY = 20
CONTROL_TOLERANCE = 0.05
TIMEOUT_SECONDS = 60.0
"""Of a pass at time scale 1."""

ReportLine = Callable[[str], None]


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

    def run_all(self, passes: OccasionPasses, later: int = 0) -> None:
        """Run all passes that are missing, and once more what failed or ran beside other load.

        later: passes of the domain that come after these, for what is said of the time left.
        """
        while todo := passes.pending(self.log) or self._once_more(passes):
            for start in range(0, len(todo), CONTROL_EVERY):
                if self.stopped():
                    return
                self._run_block(todo[start : start + CONTROL_EVERY])
                self._report_progress(todo[0][0].number, passes, later)

    def _report_progress(self, number: int, passes: OccasionPasses, later: int) -> None:
        missing = replace(passes, numbers=(number,)).left(self.log)
        every, rate = len(passes.strategies), self._number / self._seconds
        left = (passes.left(self.log) + later) / rate / 60
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
            thing=self.target.name,
            value=control.strategy.id,
            remedy="Mend that. The same command goes on; what failed is measured again.",
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
