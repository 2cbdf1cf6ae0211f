"""XLNet (Yang et al. 2019, arXiv 1906.08237) as it is pre-trained: two streams of attention, of the
words and of the places to predict, over relative positions. A batch has 512 tokens a sentence, of
which 85 are predicted; no memory of earlier segments."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, tokens

VOCABULARY = 32_000
PREDICTED = 85
NORM_EPS = 1e-12


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What all layers share. positions: (2 * tokens, hidden) encodings of relative places.
    other_segment: (batch, 1, tokens, tokens), 1 where two tokens are of different sentences.
    masked_from_words, masked_from_places: (batch, 1, tokens, tokens), true where a stream may not
    look. targets: (batch, predicted, tokens), 1 at the place of each prediction."""

    positions: torch.Tensor
    other_segment: torch.Tensor
    masked_from_words: torch.Tensor
    masked_from_places: torch.Tensor
    targets: torch.Tensor


class RelativeAttention(nn.Module):
    """Both streams through the same weights."""

    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.width = hidden // heads
        names = ("query", "key", "value", "position", "output")
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(hidden, heads, self.width)) for name in names}
        )
        self.biases = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(heads, self.width)) for name in ("w", "r", "s")}
        )
        self.segments = nn.Parameter(torch.zeros(2, heads, self.width))
        self.norm = nn.LayerNorm(hidden, NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, context: AttentionContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self._heads(words, "key"), self._heads(words, "value")
        position = torch.einsum("ph,hnd->pnd", context.positions, self.weights["position"])
        sources = key, value, position, context.other_segment
        seen = self._attend(self._heads(words, "query"), *sources, context.masked_from_words)
        query = torch.einsum("bmnd,bml->blnd", self._heads(places, "query"), context.targets)
        sought = self._attend(query, *sources, context.masked_from_places)
        sought = torch.einsum("blnd,bml->bmnd", sought, context.targets)
        return self._mixed(words, seen), self._mixed(places, sought)

    def _heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.einsum("bth,hnd->btnd", x, self.weights[name])

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        position: torch.Tensor,
        other_segment: torch.Tensor,
        masked: torch.Tensor,
    ) -> torch.Tensor:
        """What each query sees (batch, tokens, heads, width)."""
        by_content = torch.einsum("bind,bjnd->bnij", query + self.biases["w"], key)
        by_place = torch.einsum("bind,pnd->bnip", query + self.biases["r"], position)
        by_segment = torch.einsum("bind,snd->bnis", query + self.biases["s"], self.segments)
        same, other = by_segment.unbind(dim=-1)
        scores = by_content + shifted(by_place, key.shape[1])
        scores = scores + torch.where(other_segment, other[..., None], same[..., None])
        scores = (scores / math.sqrt(self.width)).masked_fill(masked, -1e30)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return torch.einsum("bnij,bjnd->bind", weights, value)

    def _mixed(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        mixed = torch.einsum("btnd,hnd->bth", seen, self.weights["output"])
        y: torch.Tensor = self.norm(self.dropout(mixed) + x)
        return y


def shifted(by_place: torch.Tensor, keys: int) -> torch.Tensor:
    """From scores of relative places (batch, heads, queries, places) to those of keys."""
    batch, heads, queries, places = by_place.shape
    turned = by_place.reshape(batch, heads, places, queries)[:, :, 1:]
    return turned.reshape(batch, heads, queries, places - 1)[..., :keys]


class XLNetLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.attention = RelativeAttention(hidden, heads, dropout)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden, NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, words: torch.Tensor, places: torch.Tensor, context: AttentionContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words, places = self.attention(words, places, context)
        return self._feed_forward(words), self._feed_forward(places)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.narrow(self.dropout(self.gelu(self.wide(x)))))
        z: torch.Tensor = self.norm(y + x)
        return z


class XLNet(nn.Module):
    """Token scores (batch, predicted, vocabulary); the output is tied to the embedding."""

    def __init__(self, layers: int, hidden: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, hidden)
        self.place = nn.Parameter(torch.zeros(1, 1, hidden))
        self.layers = nn.ModuleList(XLNetLayer(hidden, heads, dropout) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, VOCABULARY)
        self.output.weight = self.word.weight

    def forward(
        self,
        words: torch.Tensor,
        segments: torch.Tensor,
        masked: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        """masked: (batch, tokens, tokens), true where the order of prediction hides a token from
        another. targets: (batch, predicted, tokens), 1 at the place of each prediction."""
        x = self.dropout(self.word(words))
        y = self.dropout(self.place.expand(words.shape[0], targets.shape[1], -1))
        itself = torch.eye(words.shape[1], dtype=torch.bool, device=words.device)
        context = AttentionContext(
            self.dropout(relative_positions(x)),
            (segments[:, :, None] != segments[:, None, :])[:, None],
            (masked & ~itself)[:, None],
            masked[:, None],
            targets,
        )
        for layer in self.layers:
            x, y = layer(x, y, context)
        scores: torch.Tensor = self.output(self.dropout(y))
        return scores


def relative_positions(x: torch.Tensor) -> torch.Tensor:
    """Sines and cosines `(2 * tokens, hidden)` of the distances tokens to 1 - tokens, for `x`
    (batch, tokens, hidden)."""
    length, hidden = x.shape[1:]
    place = torch.arange(length, -length, -1, device=x.device, dtype=x.dtype)
    step = torch.arange(0, hidden, 2, device=x.device, dtype=x.dtype)
    angle = place[:, None] / 10_000 ** (step / hidden)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def permutation_loss(
    scores: torch.Tensor,
    words: torch.Tensor,
    segments: torch.Tensor,
    masked: torch.Tensor,
    targets: torch.Tensor,
    predicted: torch.Tensor,
) -> torch.Tensor:
    """predicted: (batch, predicted) true tokens."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), predicted.flatten())


def xlnet_pretraining(layers: int, batch_size: int, length: int = 512) -> TrainingExample:
    inputs = (
        tokens(batch_size, length, VOCABULARY),
        tokens(batch_size, length, 2),
        torch.ones(batch_size, length, length).triu() > 0,
        torch.eye(length)[:PREDICTED].repeat(batch_size, 1, 1),
        tokens(batch_size, PREDICTED, VOCABULARY),
    )
    return XLNet(layers, 1024, 16), inputs, permutation_loss


def xlnet_large(batch_size: int) -> TrainingExample:
    return xlnet_pretraining(24, batch_size)


def xlnet_48l(batch_size: int) -> TrainingExample:
    """Of twice the depth, as HeteroG trains it (Yi et al. 2020)."""
    return xlnet_pretraining(48, batch_size)
