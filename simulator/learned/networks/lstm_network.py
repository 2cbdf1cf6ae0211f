"""The network that reads along the variables, in forward order."""

import torch
from torch import Tensor, nn

from autosync.simulator.learned.networks.scoring_network import (
    NetworkBatch,
    ScoringNetwork,
    output_head,
)


class LstmNetwork(ScoringNetwork):
    """Supplement, equations 4 to 7: an MLP per shard set, summed into variables in forward order, a
    bidirectional LSTM over them, an MLP on both ends' states and the summary."""

    def __init__(self, features: int, summary: int, layers: int = 1, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU()
        )
        self.lstm = nn.LSTM(32, width, layers, batch_first=True, bidirectional=True)
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
