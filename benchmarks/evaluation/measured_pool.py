"""A measured domain as the evaluation reads it: strategies of equal messages stand once."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.search.loop.selection import message_shares
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulator import LabelledTrials
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import SAMPLED, MeasuredDomain

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """n strategies. trials: with the best estimates of their seconds. passes f64[2, n]: two single
    measurements. shares f64[n, features]: `message_shares`."""

    measured: MeasuredDomain
    trials: LabelledTrials
    passes: F64
    shares: F64

    @property
    def name(self) -> str:
        return self.measured.name

    @property
    def graph(self) -> str:
        return self.measured.domain.graph.name

    @property
    def sampled(self) -> I64:
        """The strategies that nobody designed."""
        return np.setdiff1d(np.arange(len(self.measured)), self.measured.designs)


def pool_of(measured: MeasuredDomain) -> MeasuredPool:
    merged = merged_by_messages(measured)
    first, second = merged.step_seconds, merged.second_seconds
    again = first if second is None else np.where(np.isnan(second), first, second)
    features = features_of(merged.domain, merged.population, with_nodes=True)
    return MeasuredPool(
        merged,
        LabelledTrials(merged.domain, features, merged.label_seconds),
        np.array([first, again]),
        message_shares(merged.domain, merged.population),
    )


def merged_by_messages(measured: MeasuredDomain) -> MeasuredDomain:
    """The domain with one strategy of each plan. Its seconds are the geometric means of theirs;
    hand-designed ones stand before sampled ones."""
    groups: dict[bytes, list[int]] = {}
    for index, digest in enumerate(digests_of(measured.domain, measured.population)):
        groups.setdefault(digest, []).append(index)
    if len(groups) == len(measured):
        return measured
    origins = measured.origins or (SAMPLED,) * len(measured)
    members = [sorted(group, key=lambda i: origins[i] == SAMPLED) for group in groups.values()]
    first = [group[0] for group in members]

    def mean(seconds: F64) -> F64:
        means: F64 = np.array([np.exp(np.log(seconds[group]).mean()) for group in members])
        return means

    second, predicted = measured.second_seconds, measured.predicted_seconds
    return replace(
        measured,
        population=measured.population.take(first),
        step_seconds=mean(measured.step_seconds),
        second_seconds=None if second is None else mean(second),
        best_seconds=mean(measured.label_seconds),
        origins=tuple(measured.origins[i] for i in first) if measured.origins else (),
        rounds=tuple(measured.rounds[i] for i in first) if measured.rounds else (),
        predicted_seconds=None if predicted is None else predicted[first],
    )
