"""Networks that rank by scores of their own, as AutoSync published them (supplement, sections 4 to
6 and 10): no timeline, no process, the ranking loss alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from autosync.simulator.learned.encoders import Encoder, encoder_of
from autosync.simulator.learned.features.node_features import NodeFeatures
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import HIDDEN, kept_rows
from autosync.simulator.learned.kernel_training import one_thread
from autosync.simulator.learned.learned_simulator import LabelledTrials
from benchmarks.evaluation.process import F64, I64, Network, Predictor

EPOCHS, RATE, DECAY, DECAY_AT = 200, 1e-3, 0.3, (80, 160)
WEIGHT_DECAY, CLIP = 3e-4, 0.25
SIGMA = 0.01
"""Relative seconds that are no difference; AutoSync has 0.005 to 0.03."""
BATCH = 16
FEWEST = 8
"""Trials of the domain at hand that a network learns from, where it knows no other."""


@dataclass(frozen=True, slots=True)
class ScoringNetwork:
    encoder: Encoder
    head: nn.Linear

    @torch.no_grad()
    def __call__(self, features: StrategyFeatures) -> F64:
        """A score of each strategy, `(n,)`, lower is faster."""
        hidden = self.encoder.joined(features).summary[:, -HIDDEN:].astype(np.float32)
        return np.asarray(self.head(torch.from_numpy(hidden))[:, 0], dtype=np.float64)


def published(
    network: Network, sources: Sequence[LabelledTrials], epochs: int = EPOCHS
) -> Predictor:
    """It learns from the trials of other domains that a process keeps, and where there are none
    from those of the domain at hand; with too few of either it is the timeline. Scores rank and
    tell no seconds: their median is that of the trials, or of the timeline."""
    known = None
    if sources:
        kept = [each.take(kept_rows(each.features.base_seconds)) for each in sources]
        features, labels = zip(*((each.features, each.step_seconds) for each in kept), strict=True)
        known = scoring_network(network(0), features, labels, epochs)

    def predict(
        features: StrategyFeatures, tried: I64, seconds: F64, asked: I64
    ) -> tuple[F64, F64]:
        base, scoring = features.base_seconds, known
        if scoring is None and len(tried) >= FEWEST:
            scoring = scoring_network(network(0), [features.take(tried)], [seconds], epochs)
        if scoring is None:
            return base[asked], np.zeros(len(asked))
        scores = scoring(features.take(asked))
        level = np.median(seconds if len(tried) else base[asked])
        return level * np.exp(scores - np.median(scores)), np.zeros(len(asked))

    return predict


@one_thread()
def scoring_network(
    network: nn.Module, sources: Sequence[StrategyFeatures], seconds: Sequence[F64], epochs: int
) -> ScoringNetwork:
    """The network, which learns in place, and a linear layer behind it."""
    tables = [each.nodes for each in sources if each.nodes is not None]
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = ScoringNetwork(encoder_of(network, tables), nn.Linear(HIDDEN, 1))
    parameters = [*network.parameters(), *found.head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, DECAY_AT, DECAY)
    network.train()
    for _ in range(epochs):
        for number in rng.permutation(len(tables)).tolist():
            labels, nodes = seconds[number], tables[number]
            relative = torch.from_numpy((labels / np.median(labels)).astype(np.float32))
            order = rng.permutation(len(labels))
            for some in np.array_split(order, max(1, round(len(order) / BATCH))):
                hidden = found.encoder(NodeFeatures(nodes.values[some], nodes.edges))
                loss = ranking_loss(found.head(hidden)[:, 0], relative[some])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(parameters, CLIP)
                optimizer.step()
        schedule.step()
    network.eval()
    return found


def ranking_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over pairs of which one is slower by more than SIGMA; 0 where none is (thesis
    8.3.1). labels: seconds over their median."""
    slower = labels[:, None] > labels[None, :] + SIGMA
    margins = softplus(scores[None, :] - scores[:, None])
    return (margins * slower).sum() / slower.sum().clamp(min=1)
