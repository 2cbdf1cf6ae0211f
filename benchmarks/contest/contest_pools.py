"""The pools of the replayed contest: the measured strategies of a domain, of which a search draws
its trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.bundled_data import data_folder
from autosync.domain import Domain
from autosync.population import Population
from autosync.search.loop.message_equality import message_shares
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from benchmarks.evaluation.evaluated_domain import merged_by_messages

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEAST_STRATEGIES = 220
"""Of a pool in the contest; a domain with fewer is only learned from."""
DDP = "ddp"
BY_HAND = ("ps_load_balanced", "horovod", DDP)
"""What a user would pick by hand; a strategy hits where it beats the best of them (thesis, figure
8.2, which has no DDP). Where a plan sends Horovod's messages it stands under another name."""
SEED_SHARE = 0.9
"""Of a pool, what each seed leaves to draw from, so that seeds differ."""


@dataclass(frozen=True, slots=True)
class ContestPool:
    """n measured strategies of one domain, equal messages once.

    trials: with their best estimates of the seconds. passes f64[2, n]: two single measurements,
    as a trial would return them. designed bool[n]: by hand. analytic_seconds f64[n]: predicted by
    the papers' equations. shares f64[n, features]: `message_shares`.
    """

    measured: MeasuredDomain
    trials: LabelledTrials
    passes: F64
    designed: Bools
    analytic_seconds: F64
    shares: F64

    @property
    def name(self) -> str:
        return self.measured.name

    @property
    def domain(self) -> Domain:
        return self.measured.domain

    @property
    def population(self) -> Population:
        return self.measured.population

    def __len__(self) -> int:
        return len(self.measured)

    def seconds_of(self, origin: str) -> float:
        """The best estimate of the design of this name.

        Raises:
            KeyError: it was not measured here.
        """
        if origin not in self.measured.origins:
            raise KeyError(f"{self.name}: {origin} was not measured")
        return float(self.trials.step_seconds[self.measured.origins.index(origin)])

    @property
    def baseline_seconds(self) -> float:
        """Of the best that a user would pick by hand."""
        return min(self.seconds_of(name) for name in BY_HAND if name in self.measured.origins)


def pool_of(measured: MeasuredDomain, with_shards: bool) -> ContestPool:
    """with_shards: with the features that LSTM and GAT read."""
    merged = merged_by_messages(measured)
    features = features_of(merged.domain, merged.population, with_shards)
    first = merged.step_seconds
    second = first if merged.second_seconds is None else merged.second_seconds
    designed = np.zeros(len(merged), dtype=np.bool_)
    designed[merged.designs] = True
    return ContestPool(
        merged,
        LabelledTrials(merged.domain, features, merged.label_seconds),
        np.array([first, np.where(np.isnan(second), first, second)]),
        designed,
        AnalyticSimulator().predict(merged.domain, merged.population),
        message_shares(merged.domain, merged.population),
    )


@lru_cache(maxsize=1)
def contest_pools(with_shards: bool) -> tuple[ContestPool, ...]:
    """Of every measured domain, by name."""
    return tuple(pool_of(each, with_shards) for each in load_dataset(data_folder("runtimes")))


def contested(pools: Sequence[ContestPool]) -> list[ContestPool]:
    """Those that are large enough to search in."""
    return [pool for pool in pools if len(pool) >= LEAST_STRATEGIES]
