"""HeteroG's policy: graph attention over operations, a sum over each group, attention among groups,
and a choice for each (section 4.1). Imported only where it is used: torch-geometric takes seconds
to load.

Devices are scored by what they are, not by their number, so that one policy serves clusters of any
size. Smaller than the paper's (12 layers of 8 heads, 8 layers of Transformer-XL): it trains on two
processor cores.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autosync.search.placement.operation_groups import (
    NODE_FEATURES,
    RANK_FEATURES,
    OperationGroups,
)
from autosync.search.placement.placement_actions import SCHEMES

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Tensors of an `OperationGroups`; allowed bool[world + SCHEMES]."""

    nodes: Tensor
    edges: Tensor
    group: Tensor
    groups: int
    ranks: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, groups: OperationGroups, allowed: Tensor) -> "PolicyInput":
        return cls(
            torch.from_numpy(groups.nodes),
            torch.from_numpy(groups.edges),
            torch.from_numpy(groups.group),
            groups.count,
            torch.from_numpy(groups.ranks),
            allowed,
        )


class PlacementPolicy(nn.Module):
    """width: of embeddings, divisible by heads. layers: of graph attention, and among groups."""

    def __init__(self, width: int = 64, heads: int = 4, layers: tuple[int, int] = (3, 1)) -> None:
        super().__init__()
        attention, among = layers
        self.encoder = nn.Linear(NODE_FEATURES, width)
        self.attention = nn.ModuleList(
            GATConv(width, width // heads, heads, add_self_loops=False) for _ in range(attention)
        )
        self.pool = nn.Linear(width, width)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        self.among = nn.TransformerEncoder(block, among, enable_nested_tensor=False)
        self.rank = nn.Sequential(
            nn.Linear(RANK_FEATURES, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.query = nn.Linear(width, width)
        self.schemes = nn.Linear(width, SCHEMES)
        nn.init.zeros_(self.query.weight)  # begins with even chances
        nn.init.zeros_(self.schemes.weight)

    def forward(self, given: PolicyInput) -> Tensor:
        """Logits of each group's action, `(groups, world + SCHEMES)`."""
        states = torch.relu(self.encoder(given.nodes))
        for layer in self.attention:
            states = states + nn.functional.elu(layer(states, given.edges))
        pooled = states.new_zeros(given.groups, states.shape[1])
        sizes = torch.bincount(given.group, minlength=given.groups).clamp(min=1)
        pooled = pooled.index_add(0, given.group, self.pool(states)) / sizes.sqrt()[:, None]
        embedded = self.among(torch.relu(pooled)[None])[0]
        devices = self.query(embedded) @ self.rank(given.ranks).T / embedded.shape[1] ** 0.5
        logits = torch.cat([devices, self.schemes(embedded)], dim=1)
        result: Tensor = logits.masked_fill(~given.allowed, -torch.inf)
        return result
