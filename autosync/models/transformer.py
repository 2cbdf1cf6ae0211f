"""The base Transformer for translation (Vaswani et al. 2017), one vocabulary for both languages
and for the output, as in tensorflow/models: 33,708 subwords."""

import math

import torch
from torch import nn

from autosync.models.building_blocks import Attention, TrainingExample, tokens

VOCABULARY = 33_708


class FeedForward(nn.Module):
    def __init__(self, hidden: int, dropout: float):
        super().__init__()
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.narrow(self.dropout(self.relu(self.wide(x))))
        return y


class EncoderLayer(nn.Module):
    """Normalizes before each part."""

    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, dropout)
        self.norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        x = x + self.dropout(self.attention(y, y))
        z: torch.Tensor = x + self.dropout(self.feed_forward(self.norm(x)))
        return z


class DecoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.self_norm = nn.LayerNorm(hidden)
        self.self_attention = Attention(hidden, heads, dropout, causal=True)
        self.cross_norm = nn.LayerNorm(hidden)
        self.cross_attention = Attention(hidden, heads, dropout)
        self.norm = nn.LayerNorm(hidden)
        self.feed_forward = FeedForward(hidden, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        y = self.self_norm(x)
        x = x + self.dropout(self.self_attention(y, y))
        x = x + self.dropout(self.cross_attention(self.cross_norm(x), memory))
        z: torch.Tensor = x + self.dropout(self.feed_forward(self.norm(x)))
        return z


class Transformer(nn.Module):
    """Subword scores (batch, target tokens, vocabulary)."""

    def __init__(self, layers: int, hidden: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(hidden, heads, dropout) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(hidden)
        self.decoder = nn.ModuleList(DecoderLayer(hidden, heads, dropout) for _ in range(layers))
        self.decoder_norm = nn.LayerNorm(hidden)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self._embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return nn.functional.linear(self.decoder_norm(x), self.embedding.weight)

    def _embed(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        hidden = x.shape[-1]
        embedded: torch.Tensor = self.dropout(x * math.sqrt(hidden) + positions(x))
        return embedded


def positions(x: torch.Tensor) -> torch.Tensor:
    """Sines and cosines `(tokens, hidden)` of falling frequency for `x` (batch, tokens, hidden)."""
    length, hidden = x.shape[1:]
    place = torch.arange(length, device=x.device, dtype=x.dtype)[:, None]
    step = torch.arange(0, hidden, 2, device=x.device, dtype=x.dtype)
    angle = place * torch.exp(step * (-math.log(10_000.0) / hidden))
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def translation_loss(
    scores: torch.Tensor, source: torch.Tensor, target: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    """following: the target shifted by one."""
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), following.flatten(), label_smoothing=0.1
    )


def transformer(batch_size: int, length: int = 64) -> TrainingExample:
    inputs = tuple(tokens(batch_size, length, VOCABULARY) for _ in range(3))
    return Transformer(6, 512, 8), inputs, translation_loss
