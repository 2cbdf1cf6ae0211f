"""Decoders in Llama's style (Touvron et al. 2023, arXiv 2307.09288; Llama 3, arXiv 2407.21783):
RMS norms, rotary positions, gated feed-forward, queries that share keys and values; bfloat16."""

from dataclasses import dataclass

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, join_heads, split_heads, tokens

NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """inner: width of the feed-forward. key_heads: of keys and of values. tied: the output is the
    token embedding."""

    vocabulary: int
    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    rotary_base: float
    tied: bool


LLAMA_3_2_1B = LlamaSizes(128_256, 16, 2048, 8192, 32, 8, 500_000.0, tied=True)
LLAMA_2_7B = LlamaSizes(32_000, 32, 4096, 11_008, 32, 32, 10_000.0, tied=False)


class LlamaAttention(nn.Module):
    """Causal; `angles` as `rotary_angles` makes them."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.heads, self.key_heads = sizes.heads, sizes.key_heads
        keys = sizes.hidden // sizes.heads * sizes.key_heads
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, keys, bias=False)
        self.value = nn.Linear(sizes.hidden, keys, bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query = rotated(split_heads(self.query(x), self.heads), angles)
        key = rotated(split_heads(self.key(x), self.key_heads), angles)
        value = split_heads(self.value(x), self.key_heads)
        shared = self.heads // self.key_heads
        if shared > 1:
            key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: torch.Tensor = self.output(join_heads(seen))
        return mixed


class LlamaLayer(nn.Module):
    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.attention_norm = nn.RMSNorm(sizes.hidden, NORM_EPS)
        self.attention = LlamaAttention(sizes)
        self.norm = nn.RMSNorm(sizes.hidden, NORM_EPS)
        self.gate = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.wide = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.narrow = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        y = self.norm(x)
        z: torch.Tensor = x + self.narrow(nn.functional.silu(self.gate(y)) * self.wide(y))
        return z


class Llama(nn.Module):
    """Token scores (batch, tokens, vocabulary)."""

    def __init__(self, sizes: LlamaSizes):
        super().__init__()
        self.sizes = sizes
        self.token = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(LlamaLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, NORM_EPS)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        if sizes.tied:
            self.output.weight = self.token.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.token(words)
        width = self.sizes.hidden // self.sizes.heads
        angles = rotary_angles(x, width, self.sizes.rotary_base)
        for layer in self.layers:
            x = layer(x, angles)
        scores: torch.Tensor = self.output(self.norm(x))
        return scores


def rotary_angles(x: torch.Tensor, width: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `(tokens, width)` for `x` (batch, tokens, hidden)."""
    place = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    step = torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width
    angle = (place[:, None] / base**step).repeat(1, 2)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def rotated(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """`x` (batch, heads, tokens, width) turned by its position (Su et al. 2021)."""
    cosine, sine = angles
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def next_token_loss(
    scores: torch.Tensor, words: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())


def llama_example(sizes: LlamaSizes, batch_size: int, length: int = 2048) -> TrainingExample:
    inputs = tuple(tokens(batch_size, length, sizes.vocabulary) for _ in range(2))
    return Llama(sizes).to(torch.bfloat16), inputs, next_token_loss


def llama_1b(batch_size: int) -> TrainingExample:
    return llama_example(LLAMA_3_2_1B, batch_size)


def llama_7b(batch_size: int) -> TrainingExample:
    return llama_example(LLAMA_2_7B, batch_size)
