"""Copies of modules and inputs that have shapes but no memory, and the step they run."""

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from autosync.errors import InvalidInput, NotTraceable
from autosync.importing.tracker import on_meta

Loss = Callable[..., torch.Tensor]
Inputs = tuple[torch.Tensor, ...]


def meta_module(module_or_factory: nn.Module | Callable[[], nn.Module], name: str) -> nn.Module:
    """The module on the meta device; a given module stays as it is.

    Raises:
        NotTraceable: the factory fails there, or makes no module.
    """
    if isinstance(module_or_factory, nn.Module):
        return _copy_without_values(module_or_factory, name)
    try:
        with on_meta():
            module = module_or_factory()
    except Exception as error:  # the user's own code may raise anything
        raise NotTraceable(
            f"{name!r}: building the module on the meta device fails: {first_line(error)}.",
            thing=name,
            value=type(error).__name__,
            remedy="Build it as usual and give the module itself instead of a function.",
        ) from None
    if not isinstance(module, nn.Module):
        raise NotTraceable(
            f"{name!r}: the factory returned a {type(module).__name__}, not an nn.Module.",
            thing=name,
            value=type(module).__name__,
            remedy="Return the module.",
        )
    on_its_own = all(
        value.device.type == "meta" for value in (*module.parameters(), *module.buffers())
    )
    return module if on_its_own else _copy_without_values(module, name)


def _copy_without_values(module: nn.Module, name: str) -> nn.Module:
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, torch.Tensor) and id(value) not in memo:
                memo[id(value)] = _without_memory(value, name)
    try:
        copied = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the user's module holds may refuse in its own way
        raise NotTraceable(
            f"{name!r}: {type(module).__name__} cannot be copied: {first_line(error)}.",
            thing=type(module).__name__,
            value=type(error).__name__,
            remedy="Give a function that builds the module instead of the module.",
        ) from None
    for parameter in copied.parameters():
        parameter.grad = None
    return copied


def _without_memory(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if nn.parameter.is_lazy(tensor):
        raise NotTraceable(
            f"{name!r} has a lazy parameter, whose shape is not known before its first use.",
            thing="parameter",
            value=type(tensor).__name__,
            remedy="Run the module once on an example, or name the sizes in its constructor.",
        )
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def check_inputs(example_inputs: object, name: str) -> Inputs:
    """Raises InvalidInput unless it is a tuple of tensors."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if (
        not isinstance(example_inputs, tuple | list)
        or not example_inputs
        or not all(isinstance(value, torch.Tensor) for value in example_inputs)
    ):
        kinds = (
            [type(value).__name__ for value in example_inputs]
            if isinstance(example_inputs, Iterable)
            else type(example_inputs).__name__
        )
        raise InvalidInput(
            f"{name!r}: example_inputs must be a tuple of tensors, got {kinds}.",
            thing="example_inputs",
            value=kinds,
            remedy="Give the tensors of one batch, e.g. (images, labels).",
        )
    return tuple(example_inputs)


def meta_inputs(example_inputs: Inputs, batch_size: int, factor: int = 1) -> Inputs:
    """The inputs on the meta device, their batch dimension `factor` times as long.

    The batch dimension of an input is its first dimension of size `batch_size`.
    """
    copies = []
    for value in example_inputs:
        shape = list(value.shape)
        if batch_size in shape:
            shape[shape.index(batch_size)] *= factor
        fresh = torch.empty(shape, dtype=value.dtype, device="meta")
        copies.append(
            (fresh if factor > 1 else value.detach().to("meta")).requires_grad_(value.requires_grad)
        )
    return tuple(copies)


def compute_loss(module: nn.Module, inputs: Inputs, loss: Loss | None) -> Any:
    """What the step's forward pass returns.

    Without a loss function the module gets all inputs and returns the loss. With one, the module
    gets the leading inputs, as many as its `forward` requires, and the loss function gets the
    outputs and all inputs.
    """
    if loss is None:
        return module(*inputs)
    return loss(module(*inputs[: taken_inputs(module, inputs)]), *inputs)


def taken_inputs(module: nn.Module, inputs: Inputs) -> int:
    """How many of the inputs are the module's own when there is a loss function."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return len(inputs)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return len(inputs)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.kind in positional and parameter.default is parameter.empty
        for parameter in parameters
    )
    return required or len(inputs)


def check_arguments(module: nn.Module, inputs: Inputs, loss: Loss | None, name: str) -> None:
    """Raises NotTraceable when the module cannot be called with these inputs."""
    given = len(inputs) if loss is None else taken_inputs(module, inputs)
    try:
        inspect.signature(module.forward).bind(*inputs[:given])
    except TypeError as error:
        raise NotTraceable(
            f"{name!r}: forward of {type(module).__name__} does not take the {len(inputs)} example "
            f"inputs: {first_line(error)}.",
            thing="example_inputs",
            value=len(inputs),
            remedy="Give the tensors in the order of forward's arguments, then those of the loss.",
        ) from None
    except ValueError:  # a forward without a readable signature: calling it will tell
        return


def first_line(error: BaseException) -> str:
    """The error in one line, without a traceback."""
    text = str(error).strip().splitlines()
    line = text[0].strip().rstrip(".") if text else ""
    line = line if len(line) <= 200 else line[:197] + "..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
