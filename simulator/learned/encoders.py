"""The encoder of a strategy: a network whose last hidden state joins the columns of the process.

It learns with the kernel, by the likelihood of what the process says of models that it does not see
(`kernel_training`; a deep kernel, Wilson, Hu, Salakhutdinov and Xing 2016).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autosync.cancellation import check_cancelled
from autosync.simulator.learned.features.node_features import NODE_COLUMNS, NodeFeatures
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import HIDDEN
from autosync.simulator.learned.one_thread import one_thread

BATCH = 16
"""Strategies that are read at a time; bounds memory."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """network: `(n, N, len(NODE_COLUMNS))` values and edges to `(n, HIDDEN)`. center, scale
    f32[len(NODE_COLUMNS)]: of what it reads; scale is infinite where a column does not vary."""

    network: nn.Module
    center: NDArray[np.float32]
    scale: NDArray[np.float32]

    def hidden(self, nodes: NodeFeatures) -> Tensor:
        """The network's last state of n strategies, `(n, HIDDEN)`."""
        values = np.clip((nodes.values - self.center) / self.scale, -5.0, 5.0)
        result: Tensor = self.network(torch.from_numpy(values), torch.from_numpy(nodes.edges))
        return result

    @one_thread()
    @torch.no_grad()
    def joined(self, features: StrategyFeatures) -> StrategyFeatures:
        """The features with the hidden state behind the columns."""
        assert features.nodes is not None
        nodes, states = features.nodes, [np.zeros((0, HIDDEN))]
        for start in range(0, len(features), BATCH):
            check_cancelled()
            some = NodeFeatures(nodes.values[start : start + BATCH], nodes.edges)
            states.append(self.hidden(some).numpy().astype(np.float64))
        return replace(
            features, summary=np.hstack((features.summary, np.concatenate(states))), nodes=None
        )


def encoder_of(network: nn.Module, nodes: Sequence[NodeFeatures]) -> Encoder:
    """One that has not learned. nodes: of the domains that it will learn from."""
    rows = np.concatenate([each.values.reshape(-1, len(NODE_COLUMNS)) for each in nodes])
    scale = rows.std(axis=0)
    spread = np.where(scale > 1e-9, scale, np.inf).astype(np.float32)
    return Encoder(network, rows.mean(axis=0), spread)


def gat_network(seed: int) -> nn.Module:
    """Its weights are drawn from the seed."""
    from autosync.simulator.learned.gat_network import GatNetwork  # takes seconds to load

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GatNetwork()
