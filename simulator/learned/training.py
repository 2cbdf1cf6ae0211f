"""Training on several domains: which trials are held out, and how well a simulator made alike ranks
models that it never saw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.documents import content_hash
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.population import Population, decode
from autosync.simulator.learned.checkpoint import SourceDomain
from autosync.simulator.learned.features.strategy_features import features_of, joined_features
from autosync.simulator.learned.gaussian_process import kept_rows, source_trials
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.ranking_accuracy import pairwise_accuracy
from autosync.simulator.runtime_dataset import MeasuredDomain

if TYPE_CHECKING:
    from torch import nn

F64 = NDArray[np.float64]


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
    every = [source_trials(each.features, each.step_seconds) for each in sources]
    rows = [kept_rows(each.slowness) for each in every]
    kept = [each.take(some) for each, some in zip(every, rows, strict=True)]
    models = [each.domain.graph.name for each in sources]
    if network is None:
        return LearnedSimulator(learned_kernel(kept, models), kept)
    from autosync.simulator.learned.encoders import encoder_of

    read = [each.features.take(some) for each, some in zip(sources, rows, strict=True)]
    nodes = [each.nodes for each in read if each.nodes is not None]
    encoder = encoder_of(network, nodes)
    kernel = learned_kernel(kept, models, encoder, nodes)
    joined = [
        replace(trials, columns=encoder.joined(each).summary.astype(np.float32))
        for trials, each in zip(kept, read, strict=True)
    ]
    return LearnedSimulator(kernel, joined, encoder)


def _taught(sources: Sequence[LabelledTrials], with_gat: bool, seed: int) -> LearnedSimulator:
    if not with_gat:
        return simulator_from(sources)
    from autosync.simulator.learned.encoders import gat_network

    return simulator_from(sources, gat_network(seed))


def source_of(trials: LabelledTrials) -> SourceDomain:
    """How a card names a domain that a model has learned from."""
    return SourceDomain(
        id=trials.domain.id,
        graph=trials.domain.graph.name,
        cluster=trials.domain.cluster.name,
        trials=len(trials.step_seconds),
        descriptor=tuple(float(value) for value in trials.features.descriptor),
    )


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
    with_nodes: bool = False,
) -> SplitTrials:
    """Strategies whose messages look alike to every model are on one side, which the hash of one
    of them decides: it is the same in every version, however many trials there are."""
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
            seconds, _ = simulator.predict_features(trials.features)
            shares.append(pairwise_accuracy(seconds, trials.step_seconds))
    known = [share for share in shares if np.isfinite(share)]
    return float(np.mean(known)) if known else None


def split_dataset(
    measured: Sequence[MeasuredDomain], with_nodes: bool = False
) -> list[SplitTrials]:
    """Of each domain of a dataset. with_nodes: what an encoder reads."""
    return [
        split_trials(m.domain, m.population, m.label_seconds, m.chosen, with_nodes)
        for m in measured
    ]


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
    sources: Sequence[SplitTrials],
    say: Say = lambda text: None,
    with_gat: bool = False,
    seed: int = 0,
) -> TrainingOutcome:
    """Learn from the trials of several domains that are not held out. with_gat: an encoder, from
    the seed.

    Raises:
        InvalidInput: there is no source.
    """
    shares = list(accuracy_of_unseen(sources, say, with_gat, seed).values())
    say("learning from all of them")
    simulator = _taught([each.learned for each in sources], with_gat, seed)
    if not shares:
        return TrainingOutcome(simulator, None, "none: domains of one model only")
    return TrainingOutcome(simulator, float(np.mean(shares)), UNSEEN)


def accuracy_of_unseen(
    sources: Sequence[SplitTrials],
    say: Say = lambda text: None,
    with_gat: bool = False,
    seed: int = 0,
) -> dict[int, float]:
    """The share of each source's pairs that is ranked rightly by a simulator that learned from
    sources of other graphs alone (graphs are told apart by their names); empty where there is one
    graph only."""
    graphs = [source.trials.domain.graph.name for source in sources]
    found: dict[int, float] = {}
    for graph in sorted(set(graphs)) if len(set(graphs)) > 1 else ():
        others = [s.learned for s, name in zip(sources, graphs, strict=True) if name != graph]
        simulator = _taught(others, with_gat, seed)
        for number, source in enumerate(sources):
            if graphs[number] == graph:
                trials = source.trials
                seconds, _ = simulator.predict_features(trials.features)
                found[number] = pairwise_accuracy(seconds, trials.step_seconds)
                name = f"{graph}, {trials.domain.cluster.name}"
                say(f"{name}: {found[number]:.1%} of pairs, learned from other models")
    return found
