"""What the networks read, their base, and the LSTM along the variables, in forward order.

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


def output_head(width: int, summary: int) -> nn.Sequential:
    """The output MLP; its last layer starts at zero, so that training starts from the base."""
    last = nn.Linear(64, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width + summary, 64), nn.ReLU(), last)


class LstmNetwork(ScoringNetwork):
    """Supplement, equations 4 to 7: an MLP per shard set, summed into variables in forward order, a
    bidirectional LSTM over them, an MLP on both ends' states and the summary."""

    def __init__(self, features: int, summary: int, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU()
        )
        self.lstm = nn.LSTM(32, width, batch_first=True, bidirectional=True)
        self.head = output_head(2 * width, summary)

    def forward(self, batch: NetworkBatch) -> Tensor:
        n = len(batch.summary)
        encoded = self.encoder(batch.values)
        steps = encoded.new_zeros(n * batch.variables, encoded.shape[1])
        steps = steps.index_add(0, batch.strategy * batch.variables + batch.place, encoded)
        _, (states, _) = self.lstm(steps.view(n, batch.variables, -1))
        ends = torch.cat([states[-2], states[-1]], dim=1)
        result: Tensor = self.head(torch.cat([ends, batch.summary], dim=1))[:, 0]
        return result
