"""BERT (Devlin et al. 2019) as it is pre-trained: encoder, pooler and both heads.

The masked-language head is tied to the token embedding. Encoder and pooler alone hold
109,482,240 parameters (base); with both heads 110,106,428 in 206 tensors, which is what
published measurements of "BERT-base" (110.1 M) count.
"""

import torch
from torch import nn

from autosync.models.building_blocks import Attention, TrainingExample, tokens

VOCABULARY = 30_522
POSITIONS = 512
LAYER_NORM_EPS = 1e-12


class BertEmbeddings(nn.Module):
    def __init__(self, hidden: int, dropout: float):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, hidden)
        self.position = nn.Embedding(POSITIONS, hidden)
        self.segment = nn.Embedding(2, hidden)
        self.norm = nn.LayerNorm(hidden, LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        x = self.word(words) + self.segment(segments) + self.position(positions)
        embedded: torch.Tensor = self.dropout(self.norm(x))
        return embedded


class BertLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden, LAYER_NORM_EPS)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden, LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, x)))
        y: torch.Tensor = self.norm(x + self.dropout(self.narrow(self.gelu(self.wide(x)))))
        return y


class BertEncoder(nn.Module):
    """Returns token states (batch, tokens, hidden) and the pooled first state (batch, hidden)."""

    def __init__(self, layers: int, hidden: int, heads: int, dropout: float):
        super().__init__()
        self.embeddings = BertEmbeddings(hidden, dropout)
        self.layers = nn.Sequential(*(BertLayer(hidden, heads, dropout) for _ in range(layers)))
        self.pooler = nn.Linear(hidden, hidden)

    def forward(
        self, words: torch.Tensor, segments: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.layers(self.embeddings(words, segments))
        return states, torch.tanh(self.pooler(states[:, 0]))


class BertPretraining(nn.Module):
    """Token scores (batch, tokens, vocabulary) and next-sentence scores (batch, 2)."""

    def __init__(self, layers: int, hidden: int, heads: int, dropout: float = 0.1):
        super().__init__()
        self.encoder = BertEncoder(layers, hidden, heads, dropout)
        self.transform = nn.Sequential(
            nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, LAYER_NORM_EPS)
        )
        self.decoder = nn.Linear(hidden, VOCABULARY)
        self.decoder.weight = self.encoder.embeddings.word.weight
        self.next_sentence = nn.Linear(hidden, 2)

    def forward(
        self, words: torch.Tensor, segments: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states, pooled = self.encoder(words, segments)
        return self.decoder(self.transform(states)), self.next_sentence(pooled)


def pretraining_loss(
    outputs: tuple[torch.Tensor, torch.Tensor],
    words: torch.Tensor,
    segments: torch.Tensor,
    masked: torch.Tensor,
    follows: torch.Tensor,
) -> torch.Tensor:
    """masked: the true token of each position. follows: 0 or 1 for each pair of sentences."""
    token_scores, next_scores = outputs
    token_loss = nn.functional.cross_entropy(token_scores.flatten(0, 1), masked.flatten())
    return token_loss + nn.functional.cross_entropy(next_scores, follows)


def bert_pretraining(
    layers: int, hidden: int, heads: int | None = None, *, batch_size: int, length: int = 64
) -> TrainingExample:
    """length: tokens in a sentence; 64 is what the published measurements use."""
    inputs = (
        tokens(batch_size, length, VOCABULARY),
        tokens(batch_size, length, 2),
        tokens(batch_size, length, VOCABULARY),
        torch.randint(0, 2, (batch_size,)),
    )
    return BertPretraining(layers, hidden, heads or hidden // 64), inputs, pretraining_loss


def bert_3l(batch_size: int) -> TrainingExample:
    return bert_pretraining(3, 256, batch_size=batch_size)


def bert_6l(batch_size: int) -> TrainingExample:
    return bert_pretraining(6, 512, batch_size=batch_size)


def bert_base(batch_size: int) -> TrainingExample:
    return bert_pretraining(12, 768, batch_size=batch_size)


def bert_large(batch_size: int) -> TrainingExample:
    return bert_pretraining(24, 1024, batch_size=batch_size)


def bert_48l(batch_size: int) -> TrainingExample:
    """BERT-large of twice the depth, as HeteroG trains it (Yi et al. 2020)."""
    return bert_pretraining(48, 1024, batch_size=batch_size)
