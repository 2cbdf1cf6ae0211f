"""The pairwise logistic ranking loss with the partition penalty (thesis 8.3.1)."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

SIGMA = 0.01
"""On normalised labels; AutoSync used 0.005 to 0.03."""
TEMPERATURE = 0.05
"""Scores are log seconds, in which 5 % should already be a clear difference."""


def slower_pairs(labels: Tensor, shard_counts: Tensor, sigma: float = SIGMA) -> Tensor:
    """bool[n, n]: whether strategy i counts as slower than j.

    labels: seconds over their median. shard_counts: of each strategy; of two within sigma of each
    other the one cut into more counts as slower, for the overhead that cutting always has.
    """
    penalty = sigma * torch.sign(shard_counts[:, None] - shard_counts[None, :])
    return labels[:, None] + penalty > labels[None, :]


def ranking_loss(
    scores: Tensor,
    labels: Tensor,
    shard_counts: Tensor,
    sigma: float = SIGMA,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """The mean over all pairs that count, a scalar; 0 where none does."""
    slower = slower_pairs(labels, shard_counts, sigma)
    margins = softplus((scores[None, :] - scores[:, None]) / temperature)
    return (margins * slower).sum() / slower.sum().clamp(min=1)
