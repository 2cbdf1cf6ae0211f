"""What a collection measures of a domain: its strategies, and which passes are still missing."""

import random
from dataclasses import dataclass

from autosync.domain import Domain
from autosync.population import decode
from autosync.search.collect.collected_strategy import CollectedStrategy
from autosync.search.collect.collection_log import CollectionLog, PassKey
from autosync.search.designs.design_table import hand_designed
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.trials.measurement import LOAD_LIMIT
from autosync.trials.trial_procedure import PASS_TOLERANCE


def strategies_of(domain: Domain, count: int, seed: int) -> list[CollectedStrategy]:
    """Hand-designed strategies, then sampled ones up to `count`, no two alike."""
    named = [CollectedStrategy(name, strategy) for name, strategy in hand_designed(domain, Space())]
    found = {one.strategy.id: one for one in reversed(named)}
    found = dict(reversed(found.items()))
    population = sample(domain, Space(), 0, 2 * count, seed)
    for index in range(len(population)):
        if len(found) >= count:
            break
        strategy = decode(population, index, domain)
        found.setdefault(strategy.id, CollectedStrategy("sampled", strategy))
    return list(found.values())[:count]


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
            order = list(self.strategies)
            random.Random(f"{self.seed}/{self.domain_id}/{self.occasion}/{number}").shuffle(order)
            keys = [PassKey(self.domain_id, self.occasion, number, c.strategy.id) for c in order]
            todo = [
                (key, one)
                for key, one in zip(keys, order, strict=True)
                if key not in log and (number < 3 or _differ(log, key))
            ]
            if todo:
                return todo
        return []

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
