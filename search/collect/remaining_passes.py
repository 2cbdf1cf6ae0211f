"""What a collection measures of a domain: its strategies, and which passes are still missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from autosync.domain import Domain
from autosync.population import concatenate, decode, encode
from autosync.search.collect.collected_strategy import CollectedStrategy
from autosync.search.collect.collection_log import CollectionLog, PassKey
from autosync.search.designs.design_table import hand_designed
from autosync.search.loop.message_equality import distinct_rows
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.message_digests import digests_of_strategies
from autosync.trials.measurement import LOAD_LIMIT
from autosync.trials.trial_procedure import PASS_TOLERANCE


def strategies_of(
    domain: Domain,
    count: int,
    seed: int,
    measured: Sequence[CollectedStrategy] = (),
    picks: Sequence[CollectedStrategy] = (),
) -> list[CollectedStrategy]:
    """What was measured before, then hand-designed strategies, then sampled ones up to `count`.

    What is new differs in its messages from all else, picks too, so that a collection stays whole
    when designs are added or the sampler draws otherwise: asked for more, it measures only these.

    measured: of the domain, without picks. picks: chosen in the domain, not counted here.
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


PASSES = (1, 2, 3)
"""The third only where the first two differ by more than `PASS_TOLERANCE`."""


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
