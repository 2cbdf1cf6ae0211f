"""Runs a collection's passes in blocks, each followed by the canary."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.collect.collection_log import CANARY, CollectionLog, PassKey
from autosync.search.collect.collection_plan import CollectionTarget
from autosync.search.collect.remaining_passes import Chosen, Work
from autosync.search.designs import known_designs
from autosync.strategy import Strategy
from autosync.trials.contract import Pool, TrialRequest, TrialResult

CANARY_EVERY = 20
CANARY_TOLERANCE = 0.05
TIMEOUT_SECONDS = 60.0
"""Of a pass at time scale 1."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Measuring:
    """Runs blocks of trials on a pool, each followed by a canary."""

    target: CollectionTarget
    domain: Domain
    work: Work
    pool: Pool
    journal: CollectionLog
    say: Say
    stopped: Callable[[], bool]
    _number: int = 0
    _seconds: float = 0.0

    def everything(self) -> None:
        """All passes that are missing, and once more what failed or ran beside other load."""
        while todo := self.work.pending(self.journal) or self._once_more():
            for start in range(0, len(todo), CANARY_EVERY):
                if self.stopped():
                    return
                self._block(todo[start : start + CANARY_EVERY])

    def _block(self, todo: list[tuple[PassKey, Chosen]]) -> None:
        """Measure, then the canary; where that has drifted twice, the block is in doubt."""
        done = []
        begun = time.monotonic()
        for key, chosen in todo:
            if self.stopped():
                break
            self._trial(key, chosen.origin, chosen.strategy)
            done.append(key)
        if not done:
            return
        sound = self._sound(done) or self._sound(done)
        self._seconds += time.monotonic() - begun
        number = todo[0][0].number
        have = self.journal.count(self.domain.id, self.work.occasion, number)
        rate = self._number / self._seconds * 3600
        self.say(f"  pass {number}: {have} of {len(self.work.chosen)}, {rate:.0f} passes an hour")
        if not sound and (doubted := self.journal.void_once(done)):
            self.say(f"  the canary has drifted: {len(doubted)} of them are measured again")

    def _once_more(self) -> list[tuple[PassKey, Chosen]]:
        """What failed or ran beside other load, which is forgotten; nothing is so twice."""
        doubted = self.journal.void_once(self.work.unsound(self.journal))
        if doubted:
            self.say(f"  {len(doubted)} passes failed or ran beside other load: once more")
        return self.work.pending(self.journal)

    def _sound(self, done: list[PassKey]) -> bool:
        """Run the canary; whether it agrees with the median of those before it, where there are
        three.

        Raises:
            AutosyncError: it fails, and again. What else failed since the last one is forgotten.
        """
        earlier = self.journal.canary_seconds(self.domain.id)
        strategy = known_designs.all_reduce_25mb(self.domain)
        key = PassKey(self.domain.id, self.work.occasion, CANARY, strategy.id)
        for _ in range(2):
            result = self._trial(key, "canary", strategy)
            if result.step_seconds is not None:
                ratio = result.step_seconds / float(np.median(earlier)) if earlier else 1.0
                return len(earlier) < 3 or abs(ratio - 1) <= CANARY_TOLERANCE
        self.journal.void([each for each in done if self.journal.seconds(each) is None])
        error = result.error
        raise AutosyncError(
            f"{self.target.name}: the canary, an all-reduce, failed twice"
            + (f": {error.kind}: {error.message}" if error else "."),
            thing=self.target.name,
            value=strategy.id,
            remedy="Mend that. The same command goes on; what failed is measured again.",
        )

    def _trial(self, key: PassKey, origin: str, strategy: Strategy) -> TrialResult:
        self._number += 1
        request = TrialRequest(
            key=f"{key}/{self._number}",
            bundle=make_bundle(strategy, self.domain),
            warmup=self.target.warmup,
            iterations=self.target.iterations,
            timeout_seconds=TIMEOUT_SECONDS * max(1.0, self.target.scales[1]),
        )
        measured_at = time.time()
        result = self.pool.run(request)
        self.journal.record(key, strategy, origin, measured_at, result)
        return result
