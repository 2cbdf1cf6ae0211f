"""VGG without batch normalization (Simonyan and Zisserman 2015, arXiv 1409.1556): configurations D
(16 layers) and E (19)."""

import torch
from torch import nn

from autosync.models.building_blocks import TrainingExample, classification_loss, images

Stages = tuple[tuple[int, ...], ...]

STAGES_16: Stages = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
STAGES_19: Stages = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
CLASSES_22K = 21_841
"""Of the whole of ImageNet."""


class VGG(nn.Module):
    def __init__(self, stages: Stages, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in stages:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return scores


def vgg16(batch_size: int) -> TrainingExample:
    return VGG(STAGES_16), images(batch_size), classification_loss


def vgg19(batch_size: int, classes: int = 1000) -> TrainingExample:
    return VGG(STAGES_19, classes), images(batch_size, classes), classification_loss


def vgg19_22k(batch_size: int) -> TrainingExample:
    """As Poseidon changes it (Zhang et al. 2017)."""
    return vgg19(batch_size, CLASSES_22K)
