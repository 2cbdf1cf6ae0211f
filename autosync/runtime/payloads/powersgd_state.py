"""The errors of PowerSGD, and its warm start, in checkpoints.

P and Q are linear in what the ranks put in, so the future depends on the sum of their errors only:
a checkpoint holds that sum, and every rank that loads it goes on with an equal part, however many
there are. The warm start Q goes on where the rank r of the factors is the same, and begins anew
elsewhere.

They are entries of a parameter's state in the optimizer's state_dict, for that is what torch's
functions for checkpoints carry on; torch's optimizers leave them alone.
"""

import warnings
from collections.abc import Iterable, MutableMapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import InvalidInput
from autosync.runtime.payloads.powersgd import LowRank

ERROR = "powersgd_error"
"""Entry of the variable's shape, float32: the sum over ranks."""

Q = "powersgd_q"

SavedErrors = dict[Tensor, dict[str, Tensor]]
"""By parameter, the entries."""


def gather_errors(optimizer: Optimizer, matrices: Iterable[LowRank], control: Any) -> SavedErrors:
    """A collective over `control`, the same on every rank. Variables that the optimizer does not
    hold are left out."""
    saved: SavedErrors = {}
    for one in _held(optimizer, matrices):
        error = one.error.cpu().clone()
        control.allreduce([error], dist.AllreduceOptions()).wait()
        shape = one.variable.parameter.shape
        saved[one.variable.parameter] = {ERROR: error.view(shape), Q: one.q.detach().cpu().clone()}
    return saved


def restore_errors(
    optimizer: Optimizer, matrices: Iterable[LowRank], saved: SavedErrors, ranks: int
) -> None:
    """Go on from a checkpoint's errors, or from none where it has none.

    Warns where it holds errors of variables that this plan sends otherwise: they are dropped.

    Raises:
        InvalidInput: an error has not the shape of its variable.
    """
    left = dict(saved)
    for one in _held(optimizer, matrices):
        entry = left.pop(one.variable.parameter, None)
        if entry is None:
            one.restart()
            continue
        shape = tuple(one.variable.parameter.shape)
        if tuple(entry[ERROR].shape) != shape:
            raise InvalidInput(
                f"the checkpoint's PowerSGD error of variable {one.variable.name!r} has shape "
                f"{tuple(entry[ERROR].shape)}, the variable {shape}.",
                thing=f"state_dict, {ERROR} of variable {one.variable.name}",
                value=tuple(entry[ERROR].shape),
                remedy="Load a checkpoint of this model.",
            )
        one.restart(entry[ERROR] / ranks, entry[Q])
    if left:
        warnings.warn(
            f"the checkpoint holds what PowerSGD had not yet sent of {len(left)} variables, which "
            "this plan does not pack by PowerSGD: it is dropped.",
            stacklevel=4,
        )


def take_errors(
    optimizer: Optimizer, state_dict: dict[str, Any]
) -> tuple[dict[str, Any], SavedErrors]:
    """A state_dict of the optimizer without the errors, and the errors."""
    by_key = dict(zip(saved_keys(state_dict), parameters_of(optimizer), strict=False))
    state: dict[Any, Any] = {}
    errors: SavedErrors = {}
    for key, entry in state_dict["state"].items():
        rest, error = _taken(entry)
        if error and (parameter := by_key.get(key)) is not None:
            errors[parameter] = error
        if rest or not error:
            state[key] = rest
    return {**state_dict, "state": state}, errors


def pop_errors(state: MutableMapping[Tensor, Any]) -> SavedErrors:
    """Those that an optimizer has loaded while it followed no plan, out of its state."""
    errors: SavedErrors = {}
    for parameter in list(state):
        rest, error = _taken(state[parameter])
        if error:
            state[parameter], errors[parameter] = rest, error
    return errors


def _taken(entry: Any) -> tuple[Any, dict[str, Tensor]]:
    """A parameter's state without the errors, and the errors."""
    if not isinstance(entry, dict) or ERROR not in entry:
        return entry, {}
    rest = {name: value for name, value in entry.items() if name not in (ERROR, Q)}
    return rest, {name: entry[name] for name in (ERROR, Q)}


def saved_keys(state_dict: dict[str, Any]) -> list[Any]:
    """What a state_dict calls the parameters, in order: numbers, or names."""
    return [key for group in state_dict["param_groups"] for key in group["params"]]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """In the order of a state_dict."""
    return [p for group in optimizer.__dict__["param_groups"] for p in group["params"]]


def _held(optimizer: Optimizer, matrices: Iterable[LowRank]) -> list[LowRank]:
    held = {id(parameter) for parameter in parameters_of(optimizer)}
    return [one for one in matrices if id(one.variable.parameter) in held]
