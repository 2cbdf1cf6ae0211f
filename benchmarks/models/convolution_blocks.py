"""Blocks that several convolutional networks share."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

Size = int | tuple[int, int]

RELU = partial(nn.ReLU, inplace=True)
RELU6 = partial(nn.ReLU6, inplace=True)


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch normalization and an activation (None: none).

    same: keeps the resolution at stride 1, by zeros around the image.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: Size,
        stride: int = 1,
        same: bool = False,
        groups: int = 1,
        eps: float = 1e-3,
        activation: Callable[[], nn.Module] | None = RELU,
    ):
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if same else (0, 0)
        layers: list[nn.Module] = [
            nn.Conv2d(
                *(channels_in, channels_out, (height, width), stride),
                padding=padding,
                groups=groups,
                bias=False,
            ),
            nn.BatchNorm2d(channels_out, eps),
        ]
        super().__init__(*layers, *([activation()] if activation else []))


class Branches(nn.Module):
    """Runs branches on the same input, and joins their channels in that order."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class ImageClassifier(nn.Module):
    """Class scores (batch, classes): features, their mean over the image, dropout, a layer."""

    def __init__(self, features: nn.Module, channels: int, classes: int, dropout: float):
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = torch.flatten(self.pool(self.features(x)), 1)
        scores: torch.Tensor = self.classifier(self.dropout(means))
        return scores
