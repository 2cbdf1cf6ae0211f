"""The process on the hidden state of a GAT over a model's graph."""

from collections.abc import Sequence
from functools import partial

from autosync.simulator.learned.encoders import gat_network
from autosync.simulator.learned.learned_simulator import LabelledTrials
from autosync.simulator.learned.training import simulator_from
from benchmarks.evaluation.process import Predictor, predictor_of, process
from benchmarks.evaluation.published import published


def gat(sources: Sequence[LabelledTrials]) -> Predictor:
    """Without another domain it has no encoder, since a network learns from others alone."""
    return predictor_of(simulator_from(sources, gat_network(0))) if sources else process([])


def gat_published(sources: Sequence[LabelledTrials]) -> Predictor:
    """The network alone, by AutoSync's settings."""
    return published(partial(gat_network, 0), sources)
