"""NASNet-A large, 6 @ 4032 (Zoph et al. 2018, arXiv 1707.07012), without its auxiliary
classifier. Images are padded evenly; the authors' code puts the odd row last, which gives the same
sizes."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images
from benchmarks.models.convolution_blocks import ConvNorm, ImageClassifier

IMAGE_SIZE = 331
EPS = 1e-3
STEM_CHANNELS = 96
CHANNELS = 168
"""Of a branch in the first of the three stages; 4032 / 24."""
CELLS = 6
"""In each stage."""


def fitted(channels_in: int, channels_out: int) -> nn.Sequential:
    """Another number of channels, the same pixels."""
    return nn.Sequential(nn.ReLU(), ConvNorm(channels_in, channels_out, 1, activation=None))


def separable(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Twice: every channel by itself, then pixel by pixel."""

    def once(channels: int, stride: int) -> list[nn.Module]:
        alone = nn.Conv2d(
            *(channels, channels, kernel, stride, kernel // 2), groups=channels, bias=False
        )
        mixed = nn.Conv2d(channels, channels_out, 1, bias=False)
        return [nn.ReLU(), alone, mixed, nn.BatchNorm2d(channels_out, EPS)]

    return nn.Sequential(*once(channels_in, stride), *once(channels_out, 1))


def mean(stride: int = 1) -> nn.Module:
    return nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)


def maximum() -> nn.Module:
    return nn.MaxPool2d(3, 2, padding=1)


class Halved(nn.Module):
    """Half the resolution: every second pixel, and the ones between, half of the channels each."""

    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        self.even = nn.Conv2d(channels_in, channels_out // 2, 1, bias=False)
        self.odd = nn.Conv2d(channels_in, channels_out // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x)
        shifted = nn.functional.pad(x, (-1, 1, -1, 1))
        parts = self.even(x[..., ::2, ::2]), self.odd(shifted[..., ::2, ::2])
        halved: torch.Tensor = self.norm(torch.cat(parts, dim=1))
        return halved


class NormalCell(nn.Module):
    """Of this cell's input and the one before: `(channels_now, channels_before)`. Makes 6 times
    `channels`. is_larger: the one before has twice the resolution."""

    def __init__(
        self, channels_now: int, channels_before: int, channels: int, is_larger: bool = False
    ):
        super().__init__()
        self.now = fitted(channels_now, channels)
        self.before = (Halved if is_larger else fitted)(channels_before, channels)
        self.now5, self.now3 = separable(channels, channels, 5), separable(channels, channels, 3)
        self.before5 = separable(channels, channels, 5)
        self.before3a = separable(channels, channels, 3)
        self.before3b = separable(channels, channels, 3)
        self.mean = mean()

    def forward(self, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        now, before = self.now(now), self.before(before)
        parts = (
            before,
            self.now5(now) + self.before3a(before),
            self.before5(before) + self.before3b(before),
            self.mean(now) + before,
            self.mean(before) + self.mean(before),
            self.now3(now) + now,
        )
        return torch.cat(parts, dim=1)


class ReductionCell(nn.Module):
    """Half the resolution, 4 times `channels`. before: what fits the input before, which then has
    `channels_fitted`."""

    def __init__(self, channels_now: int, channels: int, before: nn.Module, channels_fitted: int):
        super().__init__()
        self.now, self.before = fitted(channels_now, channels), before
        self.now5 = separable(channels, channels, 5, 2)
        self.before7a = separable(channels_fitted, channels, 7, 2)
        self.before7b = separable(channels_fitted, channels, 7, 2)
        self.before5 = separable(channels_fitted, channels, 5, 2)
        self.last3 = separable(channels, channels, 3)
        self.maximum, self.mean, self.half_mean = maximum(), mean(), mean(2)

    def forward(self, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        now, before = self.now(now), self.before(before)
        first = self.now5(now) + self.before7a(before)
        second = self.maximum(now) + self.before7b(before)
        third = self.half_mean(now) + self.before5(before)
        parts = (second, third, self.mean(first) + second, self.last3(first) + self.maximum(now))
        return torch.cat(parts, dim=1)


class NASNet(nn.Module):
    """4032 channels of 11x11 pixels, of images (batch, 3, 331, 331)."""

    def __init__(self, channels: int = CHANNELS, cells: int = CELLS):
        super().__init__()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3, 2, activation=None)
        narrow, half = channels // 4, channels // 2
        self.first = ReductionCell(STEM_CHANNELS, narrow, nn.Identity(), STEM_CHANNELS)
        self.second = ReductionCell(4 * narrow, half, Halved(STEM_CHANNELS, half), half)
        self.stages = nn.ModuleList()
        self.reductions = nn.ModuleList()
        now, before = 4 * half, 4 * narrow
        for stage in range(3):
            width = channels * 2**stage
            if stage:
                fit = fitted(before, width)
                self.reductions.append(ReductionCell(now, width, fit, width))
                now = 4 * width
            cells_of_stage = nn.ModuleList()
            for index in range(cells):
                cells_of_stage.append(NormalCell(now, before, width, is_larger=index == 0))
                now, before = 6 * width, now
            self.stages.append(cells_of_stage)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.stem(x)
        now = self.first(before, before)
        now, before = self.second(now, before), now
        for stage, cells in enumerate(self.stages):
            if stage:
                now = self.reductions[stage - 1](now, before)
            for cell in cells.children():
                now, before = cell(now, before), now
        return torch.relu(now)


def nasnet_large(batch_size: int, classes: int = 1000) -> TrainingExample:
    model = ImageClassifier(NASNet(), 24 * CHANNELS, classes, dropout=0.5)
    return model, images(batch_size, classes, IMAGE_SIZE), classification_loss
