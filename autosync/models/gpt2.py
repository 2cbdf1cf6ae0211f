"""GPT-2 (Radford et al. 2019), its output tied to the token embedding."""

import torch
from torch import nn

from autosync.models.building_blocks import (
    TrainingExample,
    attention_weights,
    join_heads,
    split_heads,
    tokens,
)

VOCABULARY = 50_257
POSITIONS = 1024


class GPT2Block(nn.Module):
    """One fused projection makes queries, keys and values."""

    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.gelu = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.attention_norm(x))
        query, key, value = (split_heads(part, self.heads) for part in qkv.chunk(3, dim=-1))
        weights = self.dropout(attention_weights(query, key, causal=True))
        x = x + self.dropout(self.output(join_heads(weights @ value)))
        y: torch.Tensor = x + self.dropout(self.narrow(self.gelu(self.wide(self.norm(x)))))
        return y


class GPT2(nn.Module):
    """Token scores (batch, tokens, vocabulary)."""

    def __init__(self, layers: int, hidden: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(POSITIONS, hidden)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(GPT2Block(hidden, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.token(words) + self.position(places))
        return nn.functional.linear(self.norm(self.blocks(x)), self.token.weight)


def next_token_loss(
    scores: torch.Tensor, words: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def gpt2_example(
    layers: int, hidden: int, heads: int, batch_size: int, length: int = POSITIONS
) -> TrainingExample:
    inputs = tuple(tokens(batch_size, length, VOCABULARY) for _ in range(2))
    return GPT2(layers, hidden, heads), inputs, next_token_loss


def gpt2(batch_size: int) -> TrainingExample:
    return gpt2_example(12, 768, 12, batch_size)


def gpt2_medium(batch_size: int) -> TrainingExample:
    return gpt2_example(24, 1024, 16, batch_size)


def gpt2_large(batch_size: int) -> TrainingExample:
    return gpt2_example(36, 1280, 20, batch_size)


def gpt2_xl(batch_size: int) -> TrainingExample:
    return gpt2_example(48, 1600, 25, batch_size)
