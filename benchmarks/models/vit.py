"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), patches of 16x16 pixels."""

import torch
from torch import nn

from autosync.models.building_blocks import Attention, TrainingExample, classification_loss, images

IMAGE_SIZE = 224
PATCH = 16
NORM_EPS = 1e-6


class ViTLayer(nn.Module):
    """Normalizes before each part."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, NORM_EPS)
        self.attention = Attention(hidden, heads, dropout=0.0)
        self.norm = nn.LayerNorm(hidden, NORM_EPS)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention_norm(x)
        x = x + self.attention(y, y)
        z: torch.Tensor = x + self.narrow(self.gelu(self.wide(self.norm(x))))
        return z


class VisionTransformer(nn.Module):
    """Class scores (batch, classes)."""

    def __init__(self, layers: int, hidden: int, heads: int, classes: int = 1000):
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, PATCH, PATCH)
        places = (IMAGE_SIZE // PATCH) ** 2 + 1
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.position = nn.Parameter(torch.zeros(1, places, hidden))
        self.layers = nn.Sequential(*(ViTLayer(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden, NORM_EPS)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        first = self.class_token.expand(x.shape[0], -1, -1)
        x = self.layers(torch.cat((first, x), dim=1) + self.position)
        scores: torch.Tensor = self.classifier(self.norm(x)[:, 0])
        return scores


def vit_large(batch_size: int) -> TrainingExample:
    model = VisionTransformer(24, 1024, 16)
    return model, images(batch_size, size=IMAGE_SIZE), classification_loss
