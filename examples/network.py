"""The model and the synthetic data that both training scripts use."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH_SIZE = 16


class SmallNetwork(nn.Module):
    """A convolutional network with a wide head: 1.1 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.features(images))
        return scores


class PlainNetwork(nn.Module):
    """Without batch statistics, so that it does not matter which replica sees which sample; and
    smooth, so that a sum rounded otherwise changes training by no more than its rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(1024, 128),
            nn.GELU(),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores


def synthetic_data(samples: int = 1024) -> TensorDataset:
    """Noise around ten class patterns, the same in every process."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (samples,), generator=random)
    patterns = torch.randn(10, 3, 32, 32, generator=random)
    images = patterns[labels] + 4.0 * torch.randn(samples, 3, 32, 32, generator=random)
    return TensorDataset(images, labels)


def loss(scores: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, labels)


def example() -> tuple[nn.Module, tuple[torch.Tensor, ...], object]:
    """What `autosync tune examples.network:example CLUSTER` calls: module, inputs, loss."""
    return SmallNetwork(), inputs(), loss


def plain() -> tuple[nn.Module, tuple[torch.Tensor, ...], object]:
    """The same for the complete training scripts."""
    return PlainNetwork(), inputs(), loss


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.zeros(BATCH_SIZE, 3, 32, 32), torch.zeros(BATCH_SIZE, dtype=torch.long)
