"""A measured domain as every table reads it: features, labels and predictions without training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel, make_model
from autosync.simulator.learned.models.recipe import ModelKind, Recipe
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import SAMPLED, MeasuredDomain

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

PERFECT = "perfect predictor"
MakeModel = Callable[[int], LearnedModel]
"""From a seed."""


def models_of(*kinds: ModelKind) -> dict[str, MakeModel]:
    """By name; other processes can read them."""
    return {kind: partial(make_model, Recipe(kind)) for kind in kinds}


@dataclass(frozen=True, slots=True)
class EvaluatedDomain:
    """name: its own among those evaluated. analytic_seconds f64[n]: by equations 1 to 3."""

    name: str
    measured: MeasuredDomain
    trials: LabelledTrials
    analytic_seconds: F64

    @property
    def timeline_seconds(self) -> F64:
        return self.trials.features.base_seconds

    def predicted_by(self, simulator: LearnedSimulator) -> F64:
        """Seconds of every strategy of the domain, `(n,)`."""
        return simulator.predict_features(self.measured.domain, self.trials.features)[0]

    def others(self, domains: "Sequence[EvaluatedDomain]") -> "list[EvaluatedDomain]":
        """All but this one."""
        return [each for each in domains if each.measured.domain.id != self.measured.domain.id]


def evaluated_domains(measured: Sequence[MeasuredDomain]) -> list[EvaluatedDomain]:
    """Domains of one name (another batch or profile) are told apart by their identity. Strategies
    of one plan count once."""
    names = [each.name for each in measured]
    found = []
    for each in map(merged_by_messages, measured):
        twice = names.count(each.name) > 1
        name = f"{each.name} ({each.domain.id[:6]})" if twice else each.name
        features = features_of(each.domain, each.population)
        trials = LabelledTrials(each.domain, features, each.label_seconds)
        analytic = AnalyticSimulator().predict(each.domain, each.population)
        found.append(EvaluatedDomain(name, each, trials, analytic))
    return found


def merged_by_messages(measured: MeasuredDomain) -> MeasuredDomain:
    """The domain with one strategy of each plan, so that no plan is on both sides of a split.

    Its seconds are the geometric means of theirs; hand-designed ones stand before sampled ones.
    """
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
