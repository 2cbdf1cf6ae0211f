"""VGG-16 without batch normalization (Simonyan and Zisserman 2015, configuration D)."""

import torch
from torch import nn

from autosync.models.example_batches import TrainingExample, classification_loss, images

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG(nn.Module):
    def __init__(self, classes: int = 1000):
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
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
    return VGG(), images(batch_size), classification_loss
