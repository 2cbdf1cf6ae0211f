"""Small learning tasks on scikit-learn's digits: 1,797 images of 64 pixels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.random import Generator
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 32
"""Of each rank, as in the thesis (5.3)."""
ENTRIES = 2048
"""Observed pixels of a rank's batch, where the matrix of all pixels is factorized."""
RANK, PENALTY = 5, 1e-4
"""Of the factorization: the thesis' table 5.1."""
OBSERVED = 0.5
"""Share of the pixels that the factorization sees."""


@dataclass(frozen=True)
class LearningTask:
    """name: in tables. batch_loss: of a batch that the generator draws. loss: of all data."""

    name: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch_loss: Callable[[nn.Module, Generator], Tensor]
    loss: Callable[[nn.Module], float]


@cache
def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)


def network() -> nn.Module:
    layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(*layers)


def classified(model: nn.Module, rng: Generator) -> Tensor:
    images, labels = digits()
    rows = torch.from_numpy(rng.integers(0, len(images), BATCH))
    return nn.functional.cross_entropy(model(images[rows]), labels[rows])


def classification_loss(model: nn.Module) -> float:
    images, labels = digits()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), labels))


class Factorization(nn.Module):
    """Pixels as products of a row's and a column's factors."""

    def __init__(self) -> None:
        super().__init__()
        rows, columns = digits()[0].shape
        self.rows = nn.Parameter(0.3 * torch.randn(rows, RANK))
        self.columns = nn.Parameter(0.3 * torch.randn(columns, RANK))

    def forward(self, row: Tensor, column: Tensor) -> Tensor:
        return (self.rows[row] * self.columns[column]).sum(1)


@cache
def observed() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of the entries that are seen."""
    images = digits()[0]
    seen = torch.from_numpy(np.random.default_rng(0).random(images.shape) < OBSERVED)
    rows, columns = seen.nonzero(as_tuple=True)
    return rows, columns, images[rows, columns]


def factorized(model: nn.Module, rng: Generator) -> Tensor:
    """The sum over the batch, so that a row's step does not depend on how many rows there are."""
    rows, columns, values = observed()
    drawn = torch.from_numpy(rng.integers(0, len(values), ENTRIES))
    error: Tensor = model(rows[drawn], columns[drawn]) - values[drawn]
    return error.square().sum() + ENTRIES / len(values) * PENALTY * _norm(model)


def factorization_loss(model: nn.Module) -> float:
    """The thesis' objective (5.2.2): squared errors of what is seen and the penalty, an entry."""
    rows, columns, values = observed()
    with torch.no_grad():
        error = (model(rows, columns) - values).square().sum()
        return float((error + PENALTY * _norm(model)) / len(values))


def _norm(model: nn.Module) -> Tensor:
    return torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def descent(rate: float, momentum: float = 0.0) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)


TASKS: Mapping[str, LearningTask] = {
    task.name: task
    for task in (
        LearningTask("MLP, SGD", network, descent(0.1), classified, classification_loss),
        LearningTask("MLP, momentum", network, descent(0.02, 0.9), classified, classification_loss),
        LearningTask(
            "factorization, SGD", Factorization, descent(0.005), factorized, factorization_loss
        ),
    )
}
"""The rates are those at which training in step converges well; they stay for every staleness."""
