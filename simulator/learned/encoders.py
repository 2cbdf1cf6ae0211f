"""Encoders of a strategy: networks whose last hidden state joins the columns of the process.

An encoder learns from other domains: a linear layer on its hidden state predicts their residuals,
by AutoSync's ranking loss (thesis 8.3.1) and a Huber loss, which also tells how far apart two
strategies are. Then the layer goes, and the process learns a kernel on the hidden state beside all
other columns (a deep kernel in two stages).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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

EncoderKind = Literal["gat", "lstm"]

EPOCHS, RATE, WEIGHT_DECAY, CLIP = 20, 2e-3, 3e-4, 1.0
BATCH = 16
"""Strategies of a step, all of one domain."""
SIGMA, TEMPERATURE = 0.01, 0.05
"""Of the ranking loss: the difference of relative seconds below which two strategies are alike, and
of log seconds that is clear. AutoSync has no temperature."""
UNIT, BEND = 0.1, 2.0
"""Log seconds of an output of 1, and the miss in these beyond which the loss is linear."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """center, scale f32[len(NODE_COLUMNS)]: of what the network reads."""

    kind: EncoderKind
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


def network_of(kind: EncoderKind, seed: int) -> nn.Module:
    """`(n, N, len(NODE_COLUMNS))` values and edges to `(n, HIDDEN)`, its weights drawn from the
    seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "lstm":
            return LstmNetwork()
        from autosync.simulator.learned.gat_network import GatNetwork  # takes seconds to load

        return GatNetwork()


class LstmNetwork(nn.Module):
    """Supplement, equations 4 to 7: an MLP a node, a bidirectional LSTM in forward order, both
    ends' states."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(len(NODE_COLUMNS), width), nn.ReLU())
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.last = nn.Sequential(nn.Linear(2 * width, HIDDEN), nn.Tanh())

    def forward(self, values: Tensor, edges: Tensor) -> Tensor:
        _, (states, _) = self.lstm(self.encoder(values))
        result: Tensor = self.last(torch.cat([states[-2], states[-1]], dim=1))
        return result


@one_thread()
def trained_encoder(
    kind: EncoderKind, sources: Sequence[StrategyFeatures], seconds: Sequence[F64], seed: int = 0
) -> Encoder:
    """seconds: measured, `(n,)` of each domain's strategies."""
    tables = [each.nodes for each in sources if each.nodes is not None]
    rows = np.concatenate([table.values.reshape(-1, len(NODE_COLUMNS)) for table in tables])
    scale = rows.std(axis=0)
    spread = np.where(scale > 1e-9, scale, np.inf).astype(np.float32)
    encoder = Encoder(kind, network_of(kind, seed), rows.mean(axis=0), spread)
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(HIDDEN, 1)
    parameters = [*encoder.network.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 2, EPOCHS * 4 // 5], 0.3)
    encoder.network.train()
    for _ in range(EPOCHS):
        for number in rng.permutation(len(tables)).tolist():
            order = rng.permutation(len(seconds[number]))
            for some in np.array_split(order, max(1, round(len(order) / BATCH))):
                check_cancelled()
                nodes = NodeFeatures(tables[number].values[some], tables[number].edges)
                output = head(encoder.network(*encoder.tensors(nodes)))[:, 0]
                loss = _loss(output, sources[number].base_seconds[some], seconds[number][some])
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(parameters, CLIP)
                optimizer.step()
        schedule.step()
    encoder.network.eval()
    return encoder


def _loss(output: Tensor, base_seconds: F64, step_seconds: F64) -> Tensor:
    residual = np.log(step_seconds / base_seconds)
    target = torch.from_numpy(((residual - np.median(residual)) / UNIT).astype(np.float32))
    base = torch.from_numpy(np.log(base_seconds).astype(np.float32))
    labels = torch.from_numpy((step_seconds / np.median(step_seconds)).astype(np.float32))
    return ranking_loss(base + UNIT * output, labels) + huber_loss(output, target, delta=BEND)


def ranking_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean over pairs of which one is slower by more than SIGMA; 0 where none is. scores: log
    seconds. labels: seconds over their median."""
    slower = labels[:, None] > labels[None, :] + SIGMA
    margins = softplus((scores[None, :] - scores[:, None]) / TEMPERATURE)
    return (margins * slower).sum() / slower.sum().clamp(min=1)
