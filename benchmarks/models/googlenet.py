"""GoogLeNet (Szegedy et al. 2015, arXiv 1409.4842) as published: 5x5 convolutions, response
normalization, no batch normalization; without the two auxiliary classifiers."""

from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images
from benchmarks.models.convolution_blocks import Branches, ImageClassifier

WIDTHS = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""The paper's table 1, for each stage and block: channels of 1x1, of 3x3 (reduced and full), of
5x5 (reduced and full) and of the pooled branch."""


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2),
        nn.ReLU(inplace=True),
    )


def block(channels: int, widths: tuple[int, int, int, int, int, int]) -> Branches:
    one, reduced3, three, reduced5, five, pooled = widths
    return Branches(
        convolution(channels, one, 1),
        nn.Sequential(convolution(channels, reduced3, 1), convolution(reduced3, three, 3)),
        nn.Sequential(convolution(channels, reduced5, 1), convolution(reduced5, five, 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, padding=1), convolution(channels, pooled, 1)),
    )


def googlenet_features() -> nn.Sequential:
    """1024 channels of 7x7 pixels."""
    layers: list[nn.Module] = [
        convolution(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.LocalResponseNorm(5),
        convolution(64, 64, 1),
        convolution(64, 192, 3),
        nn.LocalResponseNorm(5),
    ]
    channels = 192
    for stage in WIDTHS:
        layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        for widths in stage:
            layers.append(block(channels, widths))
            channels = widths[0] + widths[2] + widths[4] + widths[5]
    return nn.Sequential(*layers)


def googlenet(batch_size: int, classes: int = 1000) -> TrainingExample:
    model = ImageClassifier(googlenet_features(), 1024, classes, dropout=0.4)
    return model, images(batch_size, classes), classification_loss
