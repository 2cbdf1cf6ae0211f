"""MobileNet-v2 (Sandler et al. 2018, arXiv 1801.04381)."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images
from benchmarks.models.convolution_blocks import RELU6, ConvNorm, ImageClassifier

EPS = 1e-5
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""The paper's table 2: expansion, channels, blocks, stride of the first block."""
LAST_CHANNELS = 1280


class InvertedResidual(nn.Module):
    """Widens, convolves every channel by itself, narrows; added to its input where that fits."""

    def __init__(self, channels_in: int, channels_out: int, expansion: int, stride: int):
        super().__init__()
        width = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(ConvNorm(channels_in, width, 1, eps=EPS, activation=RELU6))
        layers += [
            ConvNorm(width, width, 3, stride, True, width, EPS, RELU6),
            ConvNorm(width, channels_out, 1, eps=EPS, activation=None),
        ]
        self.layers = nn.Sequential(*layers)
        self.is_added = stride == 1 and channels_in == channels_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return x + y if self.is_added else y


def mobilenet_features() -> nn.Sequential:
    """1280 channels of 7x7 pixels."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, same=True, eps=EPS, activation=RELU6)]
    channels = 32
    for expansion, width, blocks, first_stride in STAGES:
        for index in range(blocks):
            stride = 1 if index else first_stride
            layers.append(InvertedResidual(channels, width, expansion, stride))
            channels = width
    layers.append(ConvNorm(channels, LAST_CHANNELS, 1, eps=EPS, activation=RELU6))
    return nn.Sequential(*layers)


def mobilenet_v2(batch_size: int, classes: int = 1000) -> TrainingExample:
    model = ImageClassifier(mobilenet_features(), LAST_CHANNELS, classes, dropout=0.2)
    return model, images(batch_size, classes), classification_loss
