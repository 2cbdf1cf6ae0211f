"""The network that reads the graph of variables. Imported only where it is used: torch-geometric
takes seconds to load."""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from autosync.simulator.learned.networks.scoring_network import (
    NetworkBatch,
    ScoringNetwork,
    output_head,
)

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv

GENERATED = "torch_geometric.nn.conv.gat_conv_GATConv_"
"""Begins the names of what torch-geometric makes of GATConv in this process."""


class GatNetwork(ScoringNetwork):
    """Supplement, equations 8 to 10: graph attention over the pruned graph, whose nodes hold the
    sum of their encoded shard sets; the nodes' mean, an MLP."""

    def __init__(self, features: int, summary: int, heads: int = 4, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 64), nn.ReLU())
        self.first = GATConv(64, width, heads)
        self.second = GATConv(heads * width, width, heads)
        _remove_generated_sources()
        self.head = output_head(heads * width, summary)

    def forward(self, batch: NetworkBatch) -> Tensor:
        n, nodes = len(batch.summary), int(batch.node.max()) + 1
        encoded = self.encoder(batch.values)
        states = encoded.new_zeros(n * nodes, encoded.shape[1])
        states = states.index_add(0, batch.strategy * nodes + batch.node, encoded)
        shift = nodes * torch.arange(n).repeat_interleave(batch.edges.shape[1])
        edges = batch.edges.repeat(1, n) + shift
        states = nn.functional.elu(self.first(states, edges))
        states = nn.functional.elu(self.second(states, edges))
        mean = states.view(n, nodes, -1).mean(dim=1)
        result: Tensor = self.head(torch.cat([mean, batch.summary], dim=1))[:, 0]
        return result


def _remove_generated_sources() -> None:
    """torch-geometric writes modules for a kind of convolution into the temporary directory,
    imports them, and leaves them there."""
    for name, module in list(sys.modules.items()):
        if name.startswith(GENERATED):
            for path in (module.__file__, getattr(module, "__cached__", None)):
                if path is not None:
                    Path(path).unlink(missing_ok=True)
