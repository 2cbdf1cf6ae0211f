"""Inception-v3 (Szegedy et al. 2016, arXiv 1512.00567) without its auxiliary classifier, and
Inception-v4 (Szegedy et al. 2017, arXiv 1602.07261)."""

from functools import partial

from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images
from benchmarks.models.convolution_blocks import Branches, ConvNorm, ImageClassifier, Size

IMAGE_SIZE = 299

same = partial(ConvNorm, same=True)
"""A convolution that keeps the resolution."""


def chain(channels: int, *layers: tuple[int, Size]) -> nn.Sequential:
    """Convolutions that keep the resolution, of these channels and kernels."""
    widths = (channels, *(width for width, _ in layers))
    return nn.Sequential(
        *(same(narrow, *layer) for narrow, layer in zip(widths, layers, strict=False))
    )


def averaged(channels_in: int, channels_out: int) -> nn.Module:
    """A mean over 3x3 pixels, then a convolution of single pixels."""
    return nn.Sequential(
        nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), same(channels_in, channels_out, 1)
    )


def fanned(channels_in: int, channels_out: int) -> Branches:
    """A 1x3 convolution beside a 3x1 one."""
    return Branches(
        same(channels_in, channels_out, (1, 3)), same(channels_in, channels_out, (3, 1))
    )


def v3_block35(channels: int, averages: int) -> Branches:
    """At 35x35 pixels."""
    return Branches(
        same(channels, 64, 1),
        chain(channels, (48, 1), (64, 5)),
        chain(channels, (64, 1), (96, 3), (96, 3)),
        averaged(channels, averages),
    )


def v3_block17(channels: int, width: int) -> Branches:
    """At 17x17 pixels; 7x7 convolutions in two factors."""
    return Branches(
        same(channels, 192, 1),
        chain(channels, (width, 1), (width, (1, 7)), (192, (7, 1))),
        chain(
            channels, (width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))
        ),
        averaged(channels, 192),
    )


def v3_block8(channels: int) -> Branches:
    """At 8x8 pixels."""
    return Branches(
        same(channels, 320, 1),
        nn.Sequential(same(channels, 384, 1), fanned(384, 384)),
        nn.Sequential(*chain(channels, (448, 1), (384, 3)), fanned(384, 384)),
        averaged(channels, 192),
    )


def v3_features() -> nn.Sequential:
    """2048 channels of 8x8 pixels."""
    return nn.Sequential(
        ConvNorm(3, 32, 3, 2),
        ConvNorm(32, 32, 3),
        same(32, 64, 3),
        nn.MaxPool2d(3, 2),
        ConvNorm(64, 80, 1),
        ConvNorm(80, 192, 3),
        nn.MaxPool2d(3, 2),
        v3_block35(192, 32),
        v3_block35(256, 64),
        v3_block35(288, 64),
        Branches(
            ConvNorm(288, 384, 3, 2),
            nn.Sequential(*chain(288, (64, 1), (96, 3)), ConvNorm(96, 96, 3, 2)),
            nn.MaxPool2d(3, 2),
        ),
        *(v3_block17(768, width) for width in (128, 160, 160, 192)),
        Branches(
            nn.Sequential(same(768, 192, 1), ConvNorm(192, 320, 3, 2)),
            nn.Sequential(
                *chain(768, (192, 1), (192, (1, 7)), (192, (7, 1))), ConvNorm(192, 192, 3, 2)
            ),
            nn.MaxPool2d(3, 2),
        ),
        v3_block8(1280),
        v3_block8(2048),
    )


def v4_stem() -> nn.Sequential:
    """384 channels of 35x35 pixels."""
    return nn.Sequential(
        ConvNorm(3, 32, 3, 2),
        ConvNorm(32, 32, 3),
        same(32, 64, 3),
        Branches(nn.MaxPool2d(3, 2), ConvNorm(64, 96, 3, 2)),
        Branches(
            nn.Sequential(same(160, 64, 1), ConvNorm(64, 96, 3)),
            nn.Sequential(*chain(160, (64, 1), (64, (1, 7)), (64, (7, 1))), ConvNorm(64, 96, 3)),
        ),
        Branches(ConvNorm(192, 192, 3, 2), nn.MaxPool2d(3, 2)),
    )


def v4_block35() -> Branches:
    return Branches(
        same(384, 96, 1),
        chain(384, (64, 1), (96, 3)),
        chain(384, (64, 1), (96, 3), (96, 3)),
        averaged(384, 96),
    )


def v4_block17() -> Branches:
    return Branches(
        same(1024, 384, 1),
        chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
        chain(1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
        averaged(1024, 128),
    )


def v4_block8() -> Branches:
    return Branches(
        same(1536, 256, 1),
        nn.Sequential(same(1536, 384, 1), fanned(384, 256)),
        nn.Sequential(*chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3))), fanned(512, 256)),
        averaged(1536, 256),
    )


def v4_features() -> nn.Sequential:
    """1536 channels of 8x8 pixels."""
    return nn.Sequential(
        v4_stem(),
        *(v4_block35() for _ in range(4)),
        Branches(
            ConvNorm(384, 384, 3, 2),
            nn.Sequential(*chain(384, (192, 1), (224, 3)), ConvNorm(224, 256, 3, 2)),
            nn.MaxPool2d(3, 2),
        ),
        *(v4_block17() for _ in range(7)),
        Branches(
            nn.Sequential(same(1024, 192, 1), ConvNorm(192, 192, 3, 2)),
            nn.Sequential(
                *chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1))), ConvNorm(320, 320, 3, 2)
            ),
            nn.MaxPool2d(3, 2),
        ),
        *(v4_block8() for _ in range(3)),
    )


def inception_v3(batch_size: int, classes: int = 1000) -> TrainingExample:
    model = ImageClassifier(v3_features(), 2048, classes, dropout=0.5)
    return model, images(batch_size, classes, IMAGE_SIZE), classification_loss


def inception_v4(batch_size: int, classes: int = 1000) -> TrainingExample:
    model = ImageClassifier(v4_features(), 1536, classes, dropout=0.2)
    return model, images(batch_size, classes, IMAGE_SIZE), classification_loss
