"""Training on several domains: which trials are held out, how well a simulator made alike ranks
models that it never saw, and transfer to a domain without a trial.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.documents import content_hash
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population, decode
from autosync.simulator.learned.checkpoint import LEARNED, CheckpointCard, SourceDomain
from autosync.simulator.learned.features.domain_descriptor import (
    describe_domain,
    distances,
    importance,
)
from autosync.simulator.learned.features.strategy_features import features_of, joined_features
from autosync.simulator.learned.learned_simulators import COVERAGE, Calibration, LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel, make_model
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import MeasuredDomain

F64 = NDArray[np.float64]


def nearest_checkpoint(domain: Domain, cards: Sequence[CheckpointCard]) -> int:
    """Which checkpoint to start from: the one with the source most like the domain.

    Among equals the one that has seen more trials.

    Raises:
        InvalidInput: there is none.
    """
    if not cards:
        raise InvalidInput(
            "there is no checkpoint to start from.",
            thing="checkpoints",
            value=0,
            remedy="Train one on measured strategies, or rank by the timeline.",
        )
    target = describe_domain(domain)
    found = [
        (
            float(distances(target, [np.array(s.descriptor) for s in card.sources]).min()),
            card.trials,
        )
        for card in cards
    ]
    return min(range(len(cards)), key=lambda k: (found[k][0], -found[k][1]))


def transferred(
    model: LearnedModel, sources: Sequence[LabelledTrials], target: Domain
) -> LearnedSimulator:
    """A simulator for `target` that knows none of its strategies, trained on the sources.

    Sources alike count more (linear part). Scores become seconds by the sources' median error.

    Raises:
        InvalidInput: there is no source, or the target is among them.
    """
    _require(sources)
    if any(source.domain.id == target.id for source in sources):
        raise InvalidInput(
            "the target domain is among the sources.",
            thing="sources",
            value=target.id,
            remedy="Leave it out: what was measured on it belongs to `refit`.",
        )
    descriptors = [source.features.descriptor for source in sources]
    return _pretrained(model, sources, importance(describe_domain(target), descriptors))


def pretrained(model: LearnedModel, sources: Sequence[LabelledTrials]) -> LearnedSimulator:
    """A simulator for any target: all sources count alike.

    Raises:
        InvalidInput: there is no source.
    """
    _require(sources)
    return _pretrained(model, sources, np.ones(len(sources)))


def source_of(trials: LabelledTrials) -> SourceDomain:
    """How a card names a domain that a model has learned from."""
    return SourceDomain(
        id=trials.domain.id,
        graph=trials.domain.graph.name,
        cluster=trials.domain.cluster.name,
        trials=len(trials.step_seconds),
        descriptor=tuple(float(value) for value in trials.features.descriptor),
    )


def _require(sources: Sequence[LabelledTrials]) -> None:
    if not sources:
        raise InvalidInput(
            "there is no source domain to learn from.",
            thing="sources",
            value=0,
            remedy="Measure strategies of another domain first.",
        )


def _pretrained(
    model: LearnedModel, sources: Sequence[LabelledTrials], weights: F64
) -> LearnedSimulator:
    model.pretrain(sources, weights)
    simulator = LearnedSimulator(model)
    simulator.calibration = _level(model, sources)
    return simulator


def _level(model: LearnedModel, sources: Sequence[LabelledTrials]) -> Calibration:
    """By the errors on the sources themselves."""
    return level_of(
        np.concatenate(
            [
                np.log(source.step_seconds) - model.scores(source.domain, source.features)
                for source in sources
            ]
        )
    )


def level_of(errors: F64) -> Calibration:
    """Shift by the median error, log seconds; the interval spans the domains' levels and their
    errors."""
    level = float(np.median(errors))
    margin = float(np.quantile(np.abs(errors - level), COVERAGE))
    return Calibration(np.zeros(1), np.array([level]), margin)


Say = Callable[[str], None]

UNSEEN = "domains of each model, by a simulator that learned from other models alone"
HELD_OUT_OF = 4
"""One strategy in so many is never learned from, in any version: versions are judged by these."""


@dataclass(frozen=True, slots=True)
class SplitTrials:
    """Trials of one domain. held_out bool[n]: those that no version ever learns from. picked
    bool[n]: what a search drew and chose by its predictions."""

    trials: LabelledTrials
    held_out: NDArray[np.bool_]
    picked: NDArray[np.bool_]

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


def split_trials(
    domain: Domain,
    population: Population,
    step_seconds: F64,
    picked: NDArray[np.bool_] | None = None,
) -> SplitTrials:
    """Strategies whose messages look alike to every model are on one side, which the hash of one
    of them decides: it is the same in every version, however many trials there are."""
    features = features_of(domain, population)
    ids = np.array([decode(population, i, domain).id for i in range(len(population))])
    _, alike = np.unique(features.summary.astype(np.float32), axis=0, return_inverse=True)
    held_out = np.zeros(len(ids), dtype=np.bool_)
    for group in np.unique(alike):
        rows = np.flatnonzero(alike == group)
        held_out[rows] = int(min(ids[rows]), 16) % HELD_OUT_OF == 0
    if picked is None:
        picked = np.zeros(len(ids), dtype=np.bool_)
    return SplitTrials(LabelledTrials(domain, features, step_seconds), held_out, picked)


def joined_trials(parts: Sequence[SplitTrials]) -> SplitTrials:
    """Trials of domains that differ in their probed costs alone, as those of the last one."""
    domain = parts[-1].trials.domain
    features = joined_features([part.trials.features for part in parts])
    seconds = np.concatenate([part.trials.step_seconds for part in parts])
    return SplitTrials(
        LabelledTrials(domain, features, seconds),
        np.concatenate([part.held_out for part in parts]),
        np.concatenate([part.picked for part in parts]),
    )


def held_out_accuracy(
    simulator: LearnedSimulator, sources: Sequence[SplitTrials], picks: bool = False
) -> float | None:
    """The mean over domains of the share of pairs of held-out strategies ranked rightly; picks: of
    those that a search picked alone. None where no domain has a pair."""
    shares = []
    for source in sources:
        chosen = source.held_out & source.picked if picks else source.held_out
        trials = source.trials.take(np.flatnonzero(chosen))
        if len(trials.step_seconds) > 1:
            seconds, _ = simulator.predict_features(trials.domain, trials.features)
            shares.append(pairwise_accuracy(seconds, trials.step_seconds))
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else None


def split_dataset(measured: Sequence[MeasuredDomain]) -> list[SplitTrials]:
    """Of each domain of a dataset."""
    return [split_trials(m.domain, m.population, m.label_seconds, m.chosen) for m in measured]


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
    recipe: Recipe,
    sources: Sequence[SplitTrials],
    seed: int,
    say: Say = lambda text: None,
    parent: LearnedModel | None = None,
    judged_by: Recipe | None = None,
) -> TrainingOutcome:
    """Learn from the trials of several domains that are not held out. Its level and its intervals
    are those of domains that a simulator made alike did not see.

    parent: a model of the recipe that goes on from what it has learned. Its like, which did not see
    a domain, are then of closed forms alone: networks from nothing would take minutes.
    judged_by: of those that did not see a domain, where it is not the recipe.

    Raises:
        InvalidInput: there is no source.
    """
    judged = judged_by or (recipe if parent is None else Recipe("ensemble", members=LEARNED))
    left_out = scores_of_unseen(judged, sources, seed, say)
    say("learning from all of them")
    model = parent or make_model(recipe, seed)
    simulator = pretrained(model, [each.learned for each in sources])
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
            scores = found[number] = model.scores(trials.domain, trials.features)
            accuracy = pairwise_accuracy(np.exp(scores), trials.step_seconds)
            name = f"{graph}, {trials.domain.cluster.name}"
            say(f"{name}: {accuracy:.1%} of pairs, learned from other models")
    return found
