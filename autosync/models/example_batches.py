"""Example batches and losses that the bundled models share."""

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
