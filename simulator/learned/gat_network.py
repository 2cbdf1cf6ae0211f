"""The network that reads the graph of variables. Imported only where it is used: torch-geometric
takes seconds to load."""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from autosync.simulator.learned.features.node_features import NODE_COLUMNS
from autosync.simulator.learned.gaussian_process import HIDDEN

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv

GENERATED = "torch_geometric.nn.conv.gat_conv_GATConv_"
"""Begins the names of what torch-geometric makes of GATConv in this process."""


class GatNetwork(nn.Module):
    """Supplement, equations 8 to 10: an MLP a node, graph attention, the nodes' mean."""

    def __init__(self, heads: int = 4, width: int = 8) -> None:
        super().__init__()
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
