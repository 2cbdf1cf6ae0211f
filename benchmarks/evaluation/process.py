"""The timeline, and the learned simulator's Gaussian process with and without an encoder, as the
evaluation asks them."""

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray
from torch import nn

from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.learned_simulator import LabelledTrials, LearnedSimulator
from autosync.simulator.learned.training import simulator_from

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Predictor = Callable[[StrategyFeatures, I64, F64, I64], tuple[F64, F64]]
"""Of a domain: its strategies, those that were tried and their seconds, and those to predict; to
seconds and the standard deviation of their logarithm, `(asked,)` each."""
Predictors = Callable[[Sequence[LabelledTrials]], Predictor]
"""A predictor that has learned from these trials of other domains, of which there may be none."""
Network = Callable[[int], nn.Module]
"""An encoder's network, its weights drawn from a seed (`encoders.gat_network`)."""


def timeline(sources: Sequence[LabelledTrials]) -> Predictor:
    """At the level of the trials."""

    def predict(
        features: StrategyFeatures, tried: I64, seconds: F64, asked: I64
    ) -> tuple[F64, F64]:
        base = features.base_seconds
        level = np.exp(np.median(np.log(seconds / base[tried]))) if len(tried) else 1.0
        return level * base[asked], np.zeros(len(asked))

    return predict


def process(sources: Sequence[LabelledTrials]) -> Predictor:
    """Without an encoder."""
    return predictor_of(simulator_from(sources) if sources else LearnedSimulator())


def encoded(network: Network, sources: Sequence[LabelledTrials]) -> Predictor:
    """On the hidden state of a network of seed 0. Without another domain it has no encoder, since a
    network learns from others alone."""
    return predictor_of(simulator_from(sources, network(0))) if sources else process([])


def predictor_of(taught: LearnedSimulator) -> Predictor:
    """Of a simulator, which stays as it is. What its encoder reads of a domain is computed once."""
    read: dict[int, StrategyFeatures] = {}
    plain = LearnedSimulator(taught.kernel, taught.sources) if taught.is_taught else taught

    def predict(
        features: StrategyFeatures, tried: I64, seconds: F64, asked: I64
    ) -> tuple[F64, F64]:
        if id(features) not in read:
            read[id(features)] = taught.encoder.joined(features) if taught.encoder else features
        own, known = read[id(features)], copy(plain)
        plain.posterior(features.descriptor)  # of other domains alone, which copies share
        if len(tried):
            known.refit_features(own.take(tried), seconds)
        return known.predict_features(own.take(asked))

    return predict
