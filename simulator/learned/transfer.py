"""Simulators trained on other domains rank a new one without a trial; its trials then correct
them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.simulator.learned.calibration import COVERAGE, Calibration
from autosync.simulator.learned.checkpoint import CheckpointCard, SourceDomain
from autosync.simulator.learned.features.domain_descriptor import (
    describe_domain,
    distances,
    importance,
)
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, LearnedModel

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
