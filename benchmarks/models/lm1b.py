"""The LSTM for the One Billion Word benchmark (Jozefowicz et al. 2016, arXiv 1602.02410) as
Parallax trains it (Kim et al. 2019, arXiv 1808.02621): 2048 cells projected to 512, 20 steps, a
sampled softmax. Gradients of the word embedding and of the softmax touch rows only."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, tokens
from benchmarks.models.lstm import LSTMLayer

VOCABULARY = 793_470
CELLS = 2048
WIDTH = 512
SAMPLES = 8192
"""Wrong words in the softmax of a step."""


class LM1B(nn.Module):
    """Scores of the true words and of the sampled ones (batch * words, 1 + samples)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
        self.dropout = nn.Dropout(0.1)
        self.lstm = LSTMLayer(WIDTH, CELLS, projected=WIDTH)
        self.softmax_weight = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
        self.softmax_bias = nn.Embedding(VOCABULARY, 1, sparse=True)

    def forward(
        self, words: torch.Tensor, following: torch.Tensor, sampled: torch.Tensor
    ) -> torch.Tensor:
        """following: the words shifted by one. sampled: (samples,) words of the vocabulary."""
        x = self.dropout(self.embedding(words))
        states, _ = self.lstm(x, self.lstm.initial_state(x))
        states = self.dropout(states).flatten(0, 1)
        candidates = torch.cat((following.flatten(), sampled))
        weights, biases = self.softmax_weight(candidates), self.softmax_bias(candidates).squeeze(1)
        true_words = following.numel()
        true_scores = (states * weights[:true_words]).sum(dim=1) + biases[:true_words]
        scores = torch.addmm(biases[true_words:], states, weights[true_words:].t())
        return torch.cat((true_scores[:, None], scores), dim=1)


def sampled_loss(
    scores: torch.Tensor, words: torch.Tensor, following: torch.Tensor, sampled: torch.Tensor
) -> torch.Tensor:
    """The true word stands first in each row."""
    return -nn.functional.log_softmax(scores, dim=1)[:, 0].mean()


def lm1b(batch_size: int, length: int = 20) -> TrainingExample:
    words, following = (tokens(batch_size, length, VOCABULARY) for _ in range(2))
    sampled = torch.randint(0, VOCABULARY, (SAMPLES,))
    return LM1B(), (words, following, sampled), sampled_loss
