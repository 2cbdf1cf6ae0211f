"""Optimizers by name, with the state of each. Loads no torch, so that commands can list them."""

from dataclasses import dataclass
from typing import Literal, get_args

OptimizerName = Literal[
    "sgd",
    "momentum",
    "sgd_momentum",
    "adagrad",
    "rmsprop",
    "adadelta",
    "adam",
    "adamax",
    "adamw",
    "nadam",
    "radam",
    "adafactor",
]
"""Of torch.optim, at their usual options; `momentum` and `sgd_momentum` are the same."""


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """state_tensors: tensors of the variable's size in its state; small ones do not count.
    elementwise: see `domain.Optimizer`. takes_sparse: whether it supports sparse gradients."""

    state_tensors: int
    elementwise: bool = True
    takes_sparse: bool = False


KINDS: dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(0, takes_sparse=True),
    "momentum": OptimizerKind(1, takes_sparse=True),
    "sgd_momentum": OptimizerKind(1, takes_sparse=True),
    "adagrad": OptimizerKind(1, takes_sparse=True),
    "rmsprop": OptimizerKind(1),
    "adadelta": OptimizerKind(2),
    "adam": OptimizerKind(2),
    "adamax": OptimizerKind(2),
    "adamw": OptimizerKind(2),
    "nadam": OptimizerKind(2),
    "radam": OptimizerKind(2),
    "adafactor": OptimizerKind(0, elementwise=False),  # its state is a row and a column
}

OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
DENSE_OPTIMIZERS = frozenset(name for name, kind in KINDS.items() if not kind.takes_sparse)
"""Optimizers without support for sparse gradients."""

FOR_ATTENTION: OptimizerName = "adamw"
FOR_OTHERS: OptimizerName = "sgd_momentum"
"""The default if a request names none, and for sparse gradients."""
