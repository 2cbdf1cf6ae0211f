"""A simulator trained on several domains, and how well its like ranks models that it never saw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.documents import content_hash
from autosync.domain import Domain
from autosync.population import Population, decode
from autosync.simulator.evaluation.measured_dataset import MeasuredDomain
from autosync.simulator.evaluation.metrics import pairwise_accuracy
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.learned.models.model_factory import make_model
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.transfer import level_of, pretrained

F64 = NDArray[np.float64]
Say = Callable[[str], None]

UNSEEN = "domains of each model, by a simulator that learned from other models alone"
HELD_OUT_OF = 4
"""One strategy in so many is never learned from, in any version: versions are judged by these."""


@dataclass(frozen=True, slots=True)
class SplitTrials:
    """Trials of one domain. held_out bool[n]: those that no version ever learns from."""

    trials: LabelledTrials
    held_out: NDArray[np.bool_]

    @property
    def learned(self) -> LabelledTrials:
        return self.trials.take(np.flatnonzero(~self.held_out))

    @property
    def judging(self) -> LabelledTrials:
        return self.trials.take(np.flatnonzero(self.held_out))


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """accuracy: the mean over domains of the share of pairs ranked rightly, as `unseen` says; None
    where all domains are of one model."""

    simulator: LearnedSimulator
    accuracy: float | None
    unseen: str


def split_trials(domain: Domain, population: Population, step_seconds: F64) -> SplitTrials:
    """Strategies whose messages look alike to every model are on one side, which the hash of one
    of them decides: it is the same in every version, however many trials there are."""
    features = features_of(domain, population)
    ids = np.array([decode(population, i, domain).id for i in range(len(population))])
    _, alike = np.unique(features.summary.astype(np.float32), axis=0, return_inverse=True)
    held_out = np.zeros(len(ids), dtype=np.bool_)
    for group in np.unique(alike):
        rows = np.flatnonzero(alike == group)
        held_out[rows] = int(min(ids[rows]), 16) % HELD_OUT_OF == 0
    return SplitTrials(LabelledTrials(domain, features, step_seconds), held_out)


def split_dataset(measured: Sequence[MeasuredDomain]) -> list[SplitTrials]:
    """Of each domain of a dataset."""
    return [split_trials(m.domain, m.population, m.label_seconds) for m in measured]


def dataset_hash(measured: Sequence[MeasuredDomain]) -> str:
    """Changes with every domain, strategy and measurement of a dataset; 32 hex digits."""
    content = [
        {
            "domain": each.domain.id,
            "seconds": [float(f"{second:.9g}") for second in each.label_seconds],
            "strategies": [decode(each.population, i, each.domain).id for i in range(len(each))],
        }
        for each in measured
    ]
    return content_hash(content)


def train_simulator(
    recipe: Recipe, sources: Sequence[SplitTrials], seed: int, say: Say = lambda text: None
) -> TrainingOutcome:
    """Learn from the trials of several domains that are not held out. Its level and its intervals
    are those of domains that a simulator made alike did not see.

    Raises:
        InvalidInput: there is no source.
    """
    left_out = scores_of_unseen(recipe, sources, seed, say)
    say("learning from all of them")
    simulator = pretrained(make_model(recipe, seed), [each.learned for each in sources])
    if not left_out:
        return TrainingOutcome(simulator, None, "none: domains of one model only")
    labels = [np.log(sources[k].trials.step_seconds) for k in left_out]
    pairs = list(zip(left_out.values(), labels, strict=True))
    simulator.calibration = level_of(np.concatenate([label - score for score, label in pairs]))
    shares = [pairwise_accuracy(np.exp(score), np.exp(label)) for score, label in pairs]
    return TrainingOutcome(simulator, float(np.mean(shares)), UNSEEN)


def scores_of_unseen(
    recipe: Recipe, sources: Sequence[SplitTrials], seed: int, say: Say = lambda text: None
) -> dict[int, F64]:
    """The scores of each source's trials, `(n,)`, by a model that learned from sources of other
    graphs alone (graphs are told apart by their names); empty where there is one graph only."""
    graphs = [source.trials.domain.graph.name for source in sources]
    found: dict[int, F64] = {}
    for graph in sorted(set(graphs)) if len(set(graphs)) > 1 else ():
        others = [s.learned for s, name in zip(sources, graphs, strict=True) if name != graph]
        model = pretrained(make_model(recipe, seed), others).model
        for number, source in enumerate(sources):
            if graphs[number] != graph:
                continue
            trials = source.trials
            scores = found[number] = model.scores(trials.domain, trials.features)[0]
            accuracy = pairwise_accuracy(np.exp(scores), trials.step_seconds)
            name = f"{graph}, {trials.domain.cluster.name}"
            say(f"{name}: {accuracy:.1%} of pairs, learned from other models")
    return found
