"""HeteroG's policy: graph attention over operations, a sum over each group, attention among groups,
and a score of each choice (section 4.1). Imported only where it is used: torch-geometric takes
seconds to load.

Sets of devices are scored by what they are, not by their number, so that one policy serves clusters
of any size. Smaller than the paper's (12 layers of 8 heads, 8 layers of Transformer-XL): it trains
on two processor cores.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autosync.extensions.placement.operation_groups import (
    GROUP_FEATURES,
    NODE_FEATURES,
    OperationGroups,
)
from autosync.extensions.placement.placement_actions import (
    PLACE_FEATURES,
    SCHEMES,
    PlacementActions,
)

MEMORY_FEATURES = 2
"""Of a group and of a set of devices: room that is left, which changes with what is placed."""

with warnings.catch_warnings():
    # torch-geometric 2.8 calls torch.jit.script, which torch 2.13 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import GATConv


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Tensors of `OperationGroups` and `PlacementActions`. group_memory, set_memory: f32[groups or
    sets, MEMORY_FEATURES]."""

    nodes: Tensor
    edges: Tensor
    group: Tensor
    groups: Tensor
    sets: Tensor
    group_memory: Tensor
    set_memory: Tensor

    @classmethod
    def of(cls, groups: OperationGroups, actions: PlacementActions) -> "PolicyInput":
        """Of devices without limits."""
        return cls(
            torch.from_numpy(groups.nodes),
            torch.from_numpy(groups.edges),
            torch.from_numpy(groups.group),
            torch.from_numpy(groups.features),
            torch.from_numpy(actions.features),
            torch.zeros(groups.count, MEMORY_FEATURES),
            torch.zeros(len(actions.sets), MEMORY_FEATURES),
        )


@dataclass(frozen=True, slots=True)
class PolicySizes:
    """width: of embeddings, divisible by heads. layers: of graph attention. among: of attention
    among groups."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    among: int = 1


class PlacementPolicy(nn.Module):
    """All scores of a new one are zero: what it draws is what is drawn around, and chance."""

    def __init__(self, sizes: PolicySizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes or PolicySizes()
        width, heads = self.sizes.width, self.sizes.heads
        self.encoder = nn.Linear(NODE_FEATURES, width)
        self.attention = nn.ModuleList(
            GATConv(width, width // heads, heads, add_self_loops=False)
            for _ in range(self.sizes.layers)
        )
        self.pool = nn.Linear(width, width)
        self.own = nn.Linear(GROUP_FEATURES + MEMORY_FEATURES, width)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True)
        self.among = nn.TransformerEncoder(block, self.sizes.among, enable_nested_tensor=False)
        self.query = nn.Linear(width, width)
        self.place = nn.Linear(PLACE_FEATURES + MEMORY_FEATURES, width)
        self.score = nn.Linear(width, 1)
        self.schemes = nn.Linear(width, SCHEMES)
        for last in (self.score, self.schemes):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, given: PolicyInput) -> Tensor:
        """Scores of each group's actions, `(groups, sets + SCHEMES)`."""
        states = torch.relu(self.encoder(given.nodes))
        for layer in self.attention:
            states = states + nn.functional.elu(layer(states, given.edges))
        count = len(given.groups)
        sizes = torch.bincount(given.group, minlength=count).clamp(min=1)
        pooled = states.new_zeros(count, states.shape[1])
        pooled = pooled.index_add(0, given.group, self.pool(states)) / sizes.sqrt()[:, None]
        own = self.own(torch.cat([given.groups, given.group_memory], 1))
        embedded = self.among(torch.relu(pooled + own)[None])[0]
        sets = self.place(torch.cat([given.sets, given.set_memory], 1))
        met = torch.relu(self.query(embedded)[:, None] + sets[None])
        return torch.cat([self.score(met)[..., 0], self.schemes(embedded)], dim=1)
