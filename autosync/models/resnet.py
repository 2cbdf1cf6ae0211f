"""ResNet with bottleneck blocks (He et al. 2016; stride in the 3x3 convolution, as is usual)."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images

EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, width: int, stride: int):
        super().__init__()
        channels_out = width * EXPANSION
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        added: torch.Tensor = self.relu(y + self.downsample(x))
        return added


class ResNet(nn.Module):
    """blocks: bottlenecks in each of the four stages."""

    def __init__(self, blocks: tuple[int, int, int, int], classes: int = 1000):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        stages: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            parts: list[nn.Module] = []
            for block in range(count):
                stride = 2 if stage and not block else 1
                parts.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
            stages.append(nn.Sequential(*parts))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.stages(self.stem(x)))
        scores: torch.Tensor = self.fc(torch.flatten(y, 1))
        return scores


def resnet50(batch_size: int) -> TrainingExample:
    return ResNet((3, 4, 6, 3)), images(batch_size), classification_loss


def resnet101(batch_size: int) -> TrainingExample:
    return ResNet((3, 4, 23, 3)), images(batch_size), classification_loss


def resnet152(batch_size: int) -> TrainingExample:
    return ResNet((3, 8, 36, 3)), images(batch_size), classification_loss


def resnet200(batch_size: int) -> TrainingExample:
    """The depths of arXiv 1603.05027, whose blocks normalize first; these do not."""
    return ResNet((3, 24, 36, 3)), images(batch_size), classification_loss
