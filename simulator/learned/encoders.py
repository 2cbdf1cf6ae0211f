"""The encoder of a strategy: a network whose last hidden state joins the columns of the process.

An encoder learns from other domains: a linear layer on its hidden state predicts their residuals,
by AutoSync's ranking loss (thesis 8.3.1) and a Huber loss, which also tells how far apart two
strategies are. Then the layer goes, and the process learns a kernel on the hidden state beside all
other columns (a deep kernel in two stages).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import huber_loss, softplus

from autosync.cancellation import check_cancelled
from autosync.simulator.learned.features.node_features import NODE_COLUMNS, NodeFeatures
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import HIDDEN
from autosync.simulator.learned.one_thread import one_thread

F64 = NDArray[np.float64]

WEIGHT_DECAY, RATE_DECAY = 3e-4, 0.3
BATCH = 16
"""Strategies of a step, all of one domain."""
SIGMA = 0.01
"""The difference of relative seconds below which two strategies are alike."""
UNIT, BEND = 0.1, 2.0
"""Log seconds of an output of 1, and the miss in these beyond which the loss is linear."""


@dataclass(frozen=True, slots=True)
class EncoderTraining:
    """decay_at: epochs at which the rate falls to its `RATE_DECAY`. clip: of the gradient's norm.
    temperature: the difference of scores that is clear to the ranking loss. corrects_timeline:
    scores are the timeline's log seconds and a correction, of which the Huber loss judges the size;
    else they are the network's output alone, judged by the ranking loss alone.
    """

    epochs: int = 20
    rate: float = 2e-3
    decay_at: tuple[int, ...] = (10, 16)
    clip: float = 1.0
    temperature: float = 0.05
    corrects_timeline: bool = True


PUBLISHED = EncoderTraining(200, 1e-3, (80, 160), 0.25, 1.0, corrects_timeline=False)
"""AutoSync's settings (supplement, section 10)."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """network: `(n, N, len(NODE_COLUMNS))` values and edges to `(n, HIDDEN)`. center, scale
    f32[len(NODE_COLUMNS)]: of what it reads."""

    network: nn.Module
    center: NDArray[np.float32]
    scale: NDArray[np.float32]

    def joined(self, features: StrategyFeatures) -> StrategyFeatures:
        """The features with the hidden state, `(n, HIDDEN)`, behind the columns."""
        assert features.nodes is not None
        nodes = features.nodes
        states = [
            self._hidden(NodeFeatures(nodes.values[start : start + BATCH], nodes.edges))
            for start in range(0, len(features), BATCH)
        ]
        hidden = np.concatenate([np.zeros((0, HIDDEN)), *states])
        return replace(features, summary=np.hstack((features.summary, hidden)), nodes=None)

    @one_thread()
    @torch.no_grad()
    def _hidden(self, nodes: NodeFeatures) -> F64:
        check_cancelled()
        state: Tensor = self.network(*self.tensors(nodes))
        return state.numpy().astype(np.float64)

    def tensors(self, nodes: NodeFeatures) -> tuple[Tensor, Tensor]:
        """Standardised values and edges."""
        values = np.clip((nodes.values - self.center) / self.scale, -5.0, 5.0)
        return torch.from_numpy(values), torch.from_numpy(nodes.edges)


def gat_network(seed: int) -> nn.Module:
    """Its weights are drawn from the seed."""
    from autosync.simulator.learned.gat_network import GatNetwork  # takes seconds to load

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GatNetwork()


@one_thread()
def trained_encoder(
    network: nn.Module,
    sources: Sequence[StrategyFeatures],
    seconds: Sequence[F64],
    seed: int = 0,
    training: EncoderTraining | None = None,
) -> tuple[Encoder, nn.Linear]:
    """The encoder, and the layer that has predicted residuals from its hidden state.

    network: learns in place. seconds: measured, `(n,)` of each domain's strategies.
    """
    training = training or EncoderTraining()
    tables = [each.nodes for each in sources if each.nodes is not None]
    rows = np.concatenate([table.values.reshape(-1, len(NODE_COLUMNS)) for table in tables])
    scale = rows.std(axis=0)
    spread = np.where(scale > 1e-9, scale, np.inf).astype(np.float32)
    encoder = Encoder(network, rows.mean(axis=0), spread)
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(HIDDEN, 1)
    parameters = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=training.rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, training.decay_at, RATE_DECAY)
    network.train()
    for _ in range(training.epochs):
        for number in rng.permutation(len(tables)).tolist():
            order = rng.permutation(len(seconds[number]))
            for some in np.array_split(order, max(1, round(len(order) / BATCH))):
                check_cancelled()
                nodes = NodeFeatures(tables[number].values[some], tables[number].edges)
                output = head(network(*encoder.tensors(nodes)))[:, 0]
                base = sources[number].base_seconds[some]
                loss = _loss(output, base, seconds[number][some], training)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(parameters, training.clip)
                optimizer.step()
        schedule.step()
    network.eval()
    return encoder, head


def _loss(
    output: Tensor, base_seconds: F64, step_seconds: F64, training: EncoderTraining
) -> Tensor:
    labels = torch.from_numpy((step_seconds / np.median(step_seconds)).astype(np.float32))
    if not training.corrects_timeline:
        return ranking_loss(output, labels, training.temperature)
    residual = np.log(step_seconds / base_seconds)
    target = torch.from_numpy(((residual - np.median(residual)) / UNIT).astype(np.float32))
    scores = torch.from_numpy(np.log(base_seconds).astype(np.float32)) + UNIT * output
    return ranking_loss(scores, labels, training.temperature) + huber_loss(
        output, target, delta=BEND
    )


def ranking_loss(scores: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The mean over pairs of which one is slower by more than SIGMA; 0 where none is. scores: lower
    is faster. labels: seconds over their median."""
    slower = labels[:, None] > labels[None, :] + SIGMA
    margins = softplus((scores[None, :] - scores[:, None]) / temperature)
    return (margins * slower).sum() / slower.sum().clamp(min=1)
