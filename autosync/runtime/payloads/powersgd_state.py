"""The errors of PowerSGD, and its warm start, in checkpoints.

P and Q are linear in what the ranks put in, so the future depends on the sum of their errors only:
a checkpoint holds that sum, and every rank that loads it goes on with an equal part, however many
there are. The warm start Q goes on where the rank r of the factors is the same, and begins anew
elsewhere.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import InvalidInput
from autosync.runtime.payloads.powersgd import LowRank

KEY = "powersgd"
"""Entry of the optimizer's state_dict, beside torch's own two, which torch's optimizers ignore:
by the parameter's number, `error` (its shape, float32: the sum over ranks) and `q`."""

SavedErrors = dict[int, dict[str, Tensor]]


def gather_errors(optimizer: Optimizer, matrices: Iterable[LowRank], control: Any) -> SavedErrors:
    """A collective over `control`, the same on every rank. Variables that the optimizer does not
    hold are left out."""
    numbers = _numbers(optimizer)
    saved: SavedErrors = {}
    for one in matrices:
        error = one.error.cpu().clone()
        control.allreduce([error], dist.AllreduceOptions()).wait()
        if (number := numbers.get(id(one.variable.parameter))) is not None:
            shape = one.variable.parameter.shape
            saved[number] = {"error": error.view(shape), "q": one.q.detach().cpu().clone()}
    return saved


def restore_errors(
    optimizer: Optimizer, matrices: Iterable[LowRank], saved: SavedErrors, ranks: int
) -> None:
    """Go on from a checkpoint's errors, or from none where it has none.

    Warns where it holds errors of variables that this plan sends otherwise: they are dropped.

    Raises:
        InvalidInput: an error has not the shape of its variable.
    """
    numbers = _numbers(optimizer)
    left = dict(saved)
    for one in matrices:
        entry = left.pop(numbers.get(id(one.variable.parameter), -1), None)
        if entry is None:
            one.restart()
            continue
        shape = tuple(one.variable.parameter.shape)
        if tuple(entry["error"].shape) != shape:
            raise InvalidInput(
                f"the checkpoint's PowerSGD error of variable {one.variable.name!r} has shape "
                f"{tuple(entry['error'].shape)}, the variable {shape}.",
                thing=f"state_dict[{KEY!r}], variable {one.variable.name}",
                value=tuple(entry["error"].shape),
                remedy="Load a checkpoint of this model.",
            )
        one.restart(entry["error"] / ranks, entry["q"])
    if left:
        warnings.warn(
            f"the checkpoint holds what PowerSGD had not yet sent of {len(left)} variables, which "
            "this plan does not pack by PowerSGD: it is dropped.",
            stacklevel=4,
        )


def _numbers(optimizer: Optimizer) -> dict[int, int]:
    """The number under which `state_dict` lists each parameter, by its id."""
    groups = optimizer.__dict__["param_groups"]
    listed = [parameter for group in groups for parameter in group["params"]]
    return {id(parameter): number for number, parameter in enumerate(listed)}
