"""The encoder of a strategy: a network whose last hidden state joins the columns of the process.

It learns with the kernel, by the likelihood of what the process says of models that it does not see
(`kernel_training`; a deep kernel, Wilson, Hu, Salakhutdinov and Xing 2016).
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from autosync.cancellation import check_cancelled
from autosync.simulator.learned.features.node_features import NODE_COLUMNS, NodeFeatures
from autosync.simulator.learned.features.strategy_features import StrategyFeatures
from autosync.simulator.learned.gaussian_process import HIDDEN
from autosync.simulator.learned.kernel_training import one_thread

BATCH = 16
"""Strategies that are read at a time; bounds memory."""
GENERATED = "torch_geometric.nn.conv.gat_conv_GATConv_"
"""Begins the names of what torch-geometric makes of GATConv in this process."""


class Encoder(nn.Module):
    """network: `(n, N, len(NODE_COLUMNS))` values and edges to `(n, HIDDEN)`. center, scale: of the
    columns that it reads; scale is infinite where one does not vary."""

    center: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("center", torch.zeros(len(NODE_COLUMNS)))
        self.register_buffer("scale", torch.ones(len(NODE_COLUMNS)))

    def forward(self, nodes: NodeFeatures) -> Tensor:
        """The network's last state of n strategies, `(n, HIDDEN)`."""
        values = ((torch.from_numpy(nodes.values) - self.center) / self.scale).clamp(-5.0, 5.0)
        result: Tensor = self.network(values, torch.from_numpy(nodes.edges))
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
            states.append(self(some).numpy().astype(np.float64))
        return replace(
            features, summary=np.hstack((features.summary, np.concatenate(states))), nodes=None
        )


def encoder_of(network: nn.Module, nodes: Sequence[NodeFeatures]) -> Encoder:
    """One that has not learned. nodes: of the domains that it will learn from."""
    found = Encoder(network)
    rows = np.concatenate([each.values.reshape(-1, len(NODE_COLUMNS)) for each in nodes])
    found.center, scale = torch.from_numpy(rows.mean(axis=0)), torch.from_numpy(rows.std(axis=0))
    found.scale = torch.where(scale > 1e-9, scale, np.inf)
    return found


def gat_network(seed: int) -> nn.Module:
    """Its weights are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GatNetwork()


class GatNetwork(nn.Module):
    """Supplement, equations 8 to 10: an MLP a node, graph attention, the nodes' mean."""

    def __init__(self, heads: int = 4, width: int = 8) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch_geometric.nn import GATConv  # takes seconds to load
        both = heads * width
        self.encoder = nn.Sequential(nn.Linear(len(NODE_COLUMNS), both), nn.ReLU())
        self.first, self.second = GATConv(both, width, heads), GATConv(both, width, heads)
        _remove_generated_sources()
        self.last = nn.Sequential(nn.Linear(both, HIDDEN), nn.Tanh())

    def forward(self, values: Tensor, edges: Tensor) -> Tensor:
        n, nodes, _ = values.shape
        states = self.encoder(values).reshape(n * nodes, -1)
        shift = nodes * torch.arange(n).repeat_interleave(edges.shape[1])
        every = edges.repeat(1, n) + shift
        for layer in (self.first, self.second):
            states = nn.functional.elu(layer(states, every))
        result: Tensor = self.last(states.view(n, nodes, -1).mean(dim=1))
        return result


def _remove_generated_sources() -> None:
    """torch-geometric writes modules for a kind of convolution into the temporary directory,
    imports them, and leaves them there."""
    for name, module in list(sys.modules.items()):
        if name.startswith(GENERATED):
            for path in (module.__file__, getattr(module, "__cached__", None)):
                if path is not None:
                    Path(path).unlink(missing_ok=True)
