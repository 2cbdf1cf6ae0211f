"""DenseNet-121 and -201 (Huang et al. 2017, arXiv 1608.06993): growth 32."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images


class DenseLayer(nn.Module):
    """Adds `growth` channels to what all earlier layers of the block made."""

    def __init__(self, channels: int, growth: int):
        super().__init__()
        width = 4 * growth
        self.narrow = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, width, 1, bias=False),
        )
        self.grow = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.grow(self.narrow(x))), 1)


def transition(channels: int) -> nn.Sequential:
    """Halves channels and resolution."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels // 2, 1, bias=False),
        nn.AvgPool2d(2, 2),
    )


class DenseNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], growth: int = 32, classes: int = 1000):
        super().__init__()
        channels = 2 * growth
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        for index, count in enumerate(blocks):
            layers.append(
                nn.Sequential(*(DenseLayer(channels + i * growth, growth) for i in range(count)))
            )
            channels += count * growth
            if index < len(blocks) - 1:
                layers.append(transition(channels))
                channels //= 2
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return scores


def densenet121(batch_size: int) -> TrainingExample:
    return DenseNet((6, 12, 24, 16)), images(batch_size), classification_loss


def densenet201(batch_size: int) -> TrainingExample:
    return DenseNet((6, 12, 48, 32)), images(batch_size), classification_loss
