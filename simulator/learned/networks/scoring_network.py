"""What the networks read, and the base of them: `lstm_network` and `gat_network` hold the two.

Shapes: n strategies, V variables, P rows of shard features (a row is a shard set), E edges, F shard
features, G summary features.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class NetworkBatch(NamedTuple):
    """Strategies of one domain.

    values f32[P, F], summary f32[n, G]: standardised. strategy i64[P]: ascending. place, node
    i64[P]: of the shard set's variable in forward order and in the pruned graph. edges i64[2, E]:
    of that graph, the same for every strategy. variables: V.
    """

    values: Tensor
    summary: Tensor
    strategy: Tensor
    place: Tensor
    node: Tensor
    edges: Tensor
    variables: int


class ScoringNetwork(nn.Module):
    """A correction per strategy, `(n,)`, in units of CORRECTION log seconds; 0 when untrained."""

    head: nn.Sequential

    def forward(self, batch: NetworkBatch) -> Tensor:
        raise NotImplementedError

    def adjust(self, shift: float, share: float = 1.0) -> None:
        """From now on the output is (output - shift) * share."""
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.sub_(shift).mul_(share)
            last.weight.mul_(share)


def output_head(width: int, summary: int) -> nn.Sequential:
    """The output MLP; its last layer starts at zero, so that training starts from the base."""
    last = nn.Linear(64, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width + summary, 64), nn.ReLU(), last)
