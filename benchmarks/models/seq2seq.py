"""Sequence to sequence with LSTMs (Sutskever et al. 2014, arXiv 1409.3215): four layers of 1000
cells read a sentence, four write its translation; vocabularies of 160,000 and 80,000 words."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, tokens
from benchmarks.models.lstm import LSTMLayer

SOURCE_VOCABULARY = 160_000
TARGET_VOCABULARY = 80_000
WIDTH = 1000
LAYERS = 4


class Seq2Seq(nn.Module):
    """Word scores (batch, target words, target vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(SOURCE_VOCABULARY, WIDTH)
        self.target = nn.Embedding(TARGET_VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(LSTMLayer(WIDTH, WIDTH) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(LSTMLayer(WIDTH, WIDTH) for _ in range(LAYERS))
        self.output = nn.Linear(WIDTH, TARGET_VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, y = self.source(source), self.target(target)
        for reader, writer in zip(self.encoder, self.decoder, strict=True):
            x, state = reader(x, reader.initial_state(x))  # type: ignore[operator]  # an LSTM
            y, _ = writer(y, state)
        scores: torch.Tensor = self.output(y)
        return scores


def next_word_loss(
    scores: torch.Tensor, source: torch.Tensor, target: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    """following: the target shifted by one."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def lstm_seq2seq(batch_size: int, length: int = 30) -> TrainingExample:
    """length: words in a sentence."""
    inputs = (
        tokens(batch_size, length, SOURCE_VOCABULARY),
        tokens(batch_size, length, TARGET_VOCABULARY),
        tokens(batch_size, length, TARGET_VOCABULARY),
    )
    return Seq2Seq(), inputs, next_word_loss
