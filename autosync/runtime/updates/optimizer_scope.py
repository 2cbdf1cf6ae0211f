"""How much of a model an optimizer looks at to update one element of it: decides whether parts of
variables, or variables one by one, may be updated by themselves.

Exact classes: a subclass may do anything.
"""

import warnings
from collections.abc import Iterable, Sequence
from inspect import Parameter, signature

import torch
from torch.optim import Optimizer

from autosync.errors import NotSupported

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
"""Their update of an element reads only that element's gradient and state."""

BY_VARIABLE: tuple[type[Optimizer], ...] = (
    *ELEMENTWISE,
    torch.optim.ASGD,
    torch.optim.Rprop,
    torch.optim.SparseAdam,
    torch.optim.Adafactor,
    torch.optim.Muon,
)
"""Their update of a variable reads only that variable's gradient and state. Others may not: LAMB as
timm has it divides by the norm over all gradients, Lookahead steps another optimizer."""


VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def looks_at_one_variable(optimizer_class: type[Optimizer]) -> bool:
    return optimizer_class in BY_VARIABLE


def check_elementwise(optimizer_class: type[Optimizer], variable: str) -> None:
    """Raises NotSupported naming the optimizer when a part of a variable cannot be updated."""
    if optimizer_class not in ELEMENTWISE:
        known = ", ".join(known.__name__ for known in ELEMENTWISE)
        raise NotSupported(
            f"the strategy updates a part of variable {variable!r} on its own, which optimizer "
            f"{optimizer_class.__name__} does not allow.",
            thing="optimizer",
            value=optimizer_class.__name__,
            remedy=f"Use one of {known}, or a strategy without owned or sharded updates.",
        )


def check_one_backward(optimizers: Iterable[Optimizer]) -> None:
    """Raises NotSupported where a `step()` runs forward and backward passes by itself: it cannot be
    called without a closure."""
    for optimizer in optimizers:
        given = list(signature(type(optimizer).step).parameters.values())[1:]
        if any(one.default is Parameter.empty and one.kind not in VARIADIC for one in given):
            kind = type(optimizer).__name__
            raise NotSupported(
                f"{kind}.step() needs a closure, since it may run several forward and backward "
                "passes: a plan synchronizes one for each step().",
                thing="optimizer",
                value=kind,
                remedy="Use an optimizer whose step() takes gradients as they are.",
            )


def warn_if_together(optimizers: Sequence[Optimizer]) -> None:
    """Under a plan that runs into the next forward pass: say whose updates do not."""
    kinds = [type(one).__name__ for one in optimizers if type(one) not in BY_VARIABLE]
    if kinds:
        warnings.warn(
            f"optimizer {', '.join(kinds)} may look at several variables at once, so backward() "
            "waits for all their sums and step() updates them together: what the plan lets run "
            "into the next forward pass does not.",
            stacklevel=3,
        )
