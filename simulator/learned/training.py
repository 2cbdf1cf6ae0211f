"""Training on several domains: which trials are held out, and how well a simulator made alike ranks
models that it never saw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population, decode
from autosync.simulator.learned.checkpoint import SourceDomain
from autosync.simulator.learned.features.strategy_features import StrategyFeatures, features_of
from autosync.simulator.learned.gaussian_process import kept_rows, source_trials
from autosync.simulator.learned.learned_simulator import (
    LabelledTrials,
    LearnedSimulator,
    foreign_strategies,
)
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import MeasuredDomain

if TYPE_CHECKING:
    from torch import nn

F64 = NDArray[np.float64]
Say = Callable[[str], None]

UNSEEN = "domains of each model, by a simulator that learned from other models alone"
HELD_OUT_OF = 4
"""One strategy in so many is never learned from, in any version: versions are judged by these."""


def simulator_from(
    sources: Sequence[LabelledTrials], network: "nn.Module | None" = None
) -> LearnedSimulator:
    """What has learned from these domains, and knows no other. network: an encoder's, which learns
    with the kernel; the features then have their nodes.

    Raises:
        InvalidInput: there is no source.
    """
    from autosync.simulator.learned.kernel_training import learned_kernel  # loads torch

    if not sources:
        raise InvalidInput(
            "there is no source domain to learn from.",
            thing="sources",
            value=0,
            remedy="Measure strategies of another domain first.",
        )
    kept = [each.take(kept_rows(each.features.base_seconds)) for each in sources]
    trials = [source_trials(each.features, each.step_seconds) for each in kept]
    models = [each.domain.graph.name for each in kept]
    if network is None:
        return LearnedSimulator(learned_kernel(trials, models), trials)
    from autosync.simulator.learned.encoders import encoder_of

    nodes = [each.features.nodes for each in kept if each.features.nodes is not None]
    encoder = encoder_of(network, nodes)
    kernel = learned_kernel(trials, models, encoder, nodes)
    read = [source_trials(encoder.joined(each.features), each.step_seconds) for each in kept]
    return LearnedSimulator(kernel, read, encoder)


def source_of(trials: LabelledTrials) -> SourceDomain:
    """How a card names a domain that a model has learned from."""
    return SourceDomain(
        id=trials.domain.id,
        graph=trials.domain.graph.name,
        cluster=trials.domain.cluster.name,
        trials=len(trials.step_seconds),
        descriptor=tuple(trials.features.descriptor.tolist()),
    )


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


def split_trials(
    domain: Domain,
    population: Population,
    step_seconds: F64,
    picked: NDArray[np.bool_] | None = None,
    with_nodes: bool = False,
) -> SplitTrials:
    """Strategies whose messages look alike to every model are on one side, which the hash of one
    of them decides: it is the same in every version, however many trials there are. with_nodes:
    what an encoder reads."""
    features = features_of(domain, population, with_nodes)
    ids = np.array([decode(population, i, domain).id for i in range(len(population))])
    _, alike = np.unique(features.summary.astype(np.float32), axis=0, return_inverse=True)
    held_out = np.zeros(len(ids), dtype=np.bool_)
    for group in np.unique(alike):
        rows = np.flatnonzero(alike == group)
        held_out[rows] = int(min(ids[rows]), 16) % HELD_OUT_OF == 0
    if picked is None:
        picked = np.zeros(len(ids), dtype=np.bool_)
    return SplitTrials(LabelledTrials(domain, features, step_seconds), held_out, picked)


def split_dataset(
    measured: Sequence[MeasuredDomain], with_nodes: bool = False
) -> list[SplitTrials]:
    """`split_trials` of each domain of a dataset whose updates have one batch: residuals of several
    domains compare on the seconds of such iterations. Left out are strategies that a process does
    not judge, and domains without any to learn from."""
    split = []
    for m in measured:
        rows = np.flatnonzero(~foreign_strategies(m.population))
        if m.domain.accumulate > 1 or not len(rows):
            continue
        population, seconds = m.population.take(rows), m.label_seconds[rows]
        found = split_trials(m.domain, population, seconds, m.chosen[rows], with_nodes)
        if not found.held_out.all():
            split.append(found)
    return split


def joined_trials(parts: Sequence[SplitTrials]) -> SplitTrials:
    """Trials of domains that differ in their probed costs alone, as those of the last one; without
    what an encoder reads."""
    trials = [part.trials for part in parts]
    features = StrategyFeatures(
        np.concatenate([each.features.base_seconds for each in trials]),
        np.concatenate([each.features.summary for each in trials]),
        trials[-1].features.descriptor,
    )
    seconds = np.concatenate([each.step_seconds for each in trials])
    return SplitTrials(
        LabelledTrials(trials[-1].domain, features, seconds),
        np.concatenate([part.held_out for part in parts]),
        np.concatenate([part.picked for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """accuracy: the mean over domains of the share of pairs ranked rightly, as `unseen` says; None
    where all domains are of one model, or none has a pair."""

    simulator: LearnedSimulator
    accuracy: float | None
    unseen: str


def train_simulator(
    sources: Sequence[SplitTrials],
    say: Say = lambda text: None,
    network: "Callable[[], nn.Module] | None" = None,
) -> TrainingOutcome:
    """Learn from the trials of several domains that are not held out, and judge the pairs of each
    model (told apart by its graph's name) by a simulator that learned from others alone. network:
    makes an encoder's, which has learned nothing.

    Raises:
        InvalidInput: there is no source.
    """
    learned = [each.learned for each in sources]
    graphs = [each.domain.graph.name for each in learned]
    shares = []
    for graph in sorted(set(graphs)) if len(set(graphs)) > 1 else ():
        others = [each for each, name in zip(learned, graphs, strict=True) if name != graph]
        simulator = simulator_from(others, network and network())
        for source in (each.trials for each in sources if each.trials.domain.graph.name == graph):
            if np.isnan(share := _accuracy(simulator, source)):
                continue
            shares.append(share)
            where = f"{graph}, {source.domain.cluster.name}"
            say(f"{where}: {share:.1%} of pairs, learned from other models")
    say("learning from all of them")
    simulator = simulator_from(learned, network and network())
    if not shares:
        return TrainingOutcome(simulator, None, "none: domains of one model only")
    return TrainingOutcome(simulator, float(np.mean(shares)), UNSEEN)


def held_out_accuracy(
    simulator: LearnedSimulator, sources: Sequence[SplitTrials], picks: bool = False
) -> float | None:
    """The mean over domains of the share of pairs of held-out strategies ranked rightly; picks: of
    those that a search picked alone. None where no domain has a pair."""
    shares = []
    for source in sources:
        chosen = source.held_out & source.picked if picks else source.held_out
        shares.append(_accuracy(simulator, source.trials.take(np.flatnonzero(chosen))))
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else None


def _accuracy(simulator: LearnedSimulator, trials: LabelledTrials) -> float:
    """The share of pairs ranked rightly; NaN without a pair."""
    seconds, _ = simulator.predict_features(trials.features)
    return pairwise_accuracy(seconds, trials.step_seconds)
