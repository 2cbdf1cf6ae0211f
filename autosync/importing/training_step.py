"""The step that is recorded and timed: which inputs the module takes, and what its loss is."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from autosync.errors import NotTraceable
from autosync.importing.error_location import first_line
from autosync.importing.example_inputs import Inputs

Loss = Callable[..., torch.Tensor]


def compute_loss(
    module: nn.Module,
    inputs: Inputs,
    loss: Loss | None,
    before_loss: Callable[[], None] | None = None,
) -> Any:
    """What the step's forward pass returns.

    Without a loss function the module gets all inputs and returns the loss. With one it gets the
    leading inputs, as many as its `forward` requires, or the keywords that `forward` names; the
    loss function gets the outputs and all inputs, or the keywords that it names.

    before_loss: called between the module and the loss function.
    """
    args, keywords = module_arguments(module, inputs, loss)
    outputs = module(*args, **keywords)
    if before_loss and loss is not None:
        before_loss()
    return loss_of(outputs, inputs, loss)


def loss_of(outputs: Any, inputs: Inputs, loss: Loss | None) -> Any:
    """The loss of what the module returned."""
    if loss is None:
        return own_loss(outputs)
    if isinstance(inputs, dict):
        named = _keywords_of(loss)
        return loss(outputs, **{k: v for k, v in inputs.items() if named is None or k in named})
    return loss(outputs, *inputs)


def own_loss(outputs: Any) -> Any:
    """The loss among what a module returns: its `loss` (an entry or an attribute), or the first of
    a tuple where that is a scalar; else the outputs as they are."""
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
        return outputs if found is None else found
    if isinstance(outputs, tuple | list) and outputs and _is_scalar(outputs[0]):
        return outputs[0]
    found = getattr(outputs, "loss", None)
    return found if isinstance(found, torch.Tensor) else outputs


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad


def module_arguments(
    module: nn.Module, inputs: Inputs, loss: Loss | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the module is called with: positional arguments and keywords."""
    if not isinstance(inputs, dict):
        return (inputs if loss is None else inputs[: _required(module, inputs)]), {}
    if loss is None:
        return (), inputs
    named, for_loss = _named(module.forward), _named(loss)
    rest = _keywords_of(module.forward) is None
    taken = {k: v for k, v in inputs.items() if k in named or (rest and k not in for_loss)}
    return (), taken


def _required(module: nn.Module, inputs: tuple[Any, ...]) -> int:
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


def _named(function: Callable[..., Any]) -> set[str]:
    """Arguments that the function's signature names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {parameter.name for parameter in parameters if parameter.kind not in several}


def _keywords_of(function: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None where it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return _named(function)


def check_arguments(module: nn.Module, inputs: Inputs, loss: Loss | None, name: str) -> None:
    """Raises NotTraceable when the module cannot be called with these inputs."""
    args, keywords = module_arguments(module, inputs, loss)
    try:
        inspect.signature(module.forward).bind(*args, **keywords)
    except TypeError as error:
        order = "Name them as forward's arguments, then those of the loss."
        if not isinstance(inputs, dict):
            order = "Give the tensors in the order of forward's arguments, then those of the loss."
        raise NotTraceable(
            f"{name!r}: forward of {type(module).__name__} does not take the {len(inputs)} example "
            f"inputs: {first_line(error)}.",
            thing="example_inputs",
            value=len(inputs),
            remedy=order,
        ) from None
    except ValueError:  # a forward without a readable signature: calling it will tell
        return
