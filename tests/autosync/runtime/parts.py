"""Parts of models, with their types."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn


def gradient_of(parameter: Tensor) -> Tensor:
    """That is there."""
    found = parameter.grad
    assert found is not None
    return found


def linear(model: nn.Module, place: int) -> nn.Linear:
    """A layer of a sequence."""
    found = list(model.children())[place]
    assert isinstance(found, nn.Linear)
    return found


def without_sync(model: nn.Module) -> AbstractContextManager[None]:
    """`model.no_sync()`, which an attached plan has put there."""
    no_sync: Callable[[], AbstractContextManager[None]] = model.__dict__["no_sync"]
    return no_sync()


def total_of(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()
