"""An LSTM over a model's nodes in forward order (supplement, equations 4 to 7)."""

import torch
from torch import Tensor, nn

from autosync.simulator.learned.features.node_features import NODE_COLUMNS
from autosync.simulator.learned.gaussian_process import HIDDEN


class LstmNetwork(nn.Module):
    """An MLP a node, a bidirectional LSTM, both ends' states."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(len(NODE_COLUMNS), width), nn.ReLU())
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.last = nn.Sequential(nn.Linear(2 * width, HIDDEN), nn.Tanh())

    def forward(self, values: Tensor, edges: Tensor) -> Tensor:
        _, (states, _) = self.lstm(self.encoder(values))
        result: Tensor = self.last(torch.cat([states[-2], states[-1]], dim=1))
        return result


def lstm_network(seed: int) -> nn.Module:
    """Its weights are drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LstmNetwork()
