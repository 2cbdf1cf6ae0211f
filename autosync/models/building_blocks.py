"""Example batches, losses and multi-head attention that the bundled models share."""

import math
from typing import Any

import torch
from torch import nn

TrainingExample = tuple[nn.Module, tuple[torch.Tensor, ...], Any]
"""A module, its example inputs, and its loss function (outputs, *inputs) -> scalar."""


def classification_loss(
    outputs: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def images(batch_size: int, classes: int = 1000, size: int = 224) -> tuple[torch.Tensor, ...]:
    """A batch of images (batch, 3, size, size) and their labels (batch,)."""
    pictures = torch.randn(batch_size, 3, size, size)
    return pictures, torch.randint(0, classes, (batch_size,))


def tokens(batch_size: int, length: int, vocabulary: int) -> torch.Tensor:
    """A `(batch_size, length)` int64 tensor."""
    return torch.randint(0, vocabulary, (batch_size, length))


class Attention(nn.Module):
    """Attends from `x` (batch, queries, hidden) to `memory` (batch, keys, hidden).

    causal: position i sees positions up to i only.
    """

    def __init__(self, hidden: int, heads: int, dropout: float, causal: bool = False):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        weights = attention_weights(
            split_heads(self.query(x), self.heads),
            split_heads(self.key(memory), self.heads),
            self.causal,
        )
        seen = self.dropout(weights) @ split_heads(self.value(memory), self.heads)
        mixed: torch.Tensor = self.output(join_heads(seen))
        return mixed


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, tokens, hidden) -> (batch, heads, tokens, hidden / heads)."""
    batch, length, hidden = x.shape
    return x.view(batch, length, heads, hidden // heads).transpose(1, 2)


def join_heads(x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, tokens, width) -> (batch, tokens, heads * width)."""
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def attention_weights(query: torch.Tensor, key: torch.Tensor, causal: bool) -> torch.Tensor:
    """A `(batch, heads, queries, keys)` tensor whose rows add up to 1."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if causal:
        length = query.shape[-2]
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.softmax(scores, dim=-1)
