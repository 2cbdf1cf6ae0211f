"""The step that is recorded and timed: its example inputs as training scripts make them (a tuple,
keyword arguments, nested containers), which of them the module takes, and what its loss is."""

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from enum import Enum
from typing import Any

import torch
from torch import nn

from autosync.errors import InvalidInput, NotTraceable
from autosync.importing.recording_devices import RecordingDevice
from autosync.importing.refusals import first_line

Inputs = tuple[Any, ...] | dict[str, Any]
"""Positional arguments, or keyword arguments: tensors, plain values, and containers of them."""

PLAIN = (bool, int, float, complex, str, bytes, Enum, torch.dtype, torch.Size)


def check_inputs(example_inputs: object, name: str) -> Inputs:
    """Positional arguments as a tuple, keyword arguments as a dict.

    Raises:
        InvalidInput: there is no tensor in them, or something that is neither a tensor, a plain
            value nor a container.
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    inputs: Inputs
    if isinstance(example_inputs, Mapping):
        inputs = {str(key): value for key, value in example_inputs.items()}
    elif isinstance(example_inputs, tuple | list):
        inputs = tuple(example_inputs)
    else:
        raise _no_inputs(name, type(example_inputs).__name__)
    if not any(isinstance(value, torch.Tensor) for _, value in _leaves(inputs, "")):
        raise _no_inputs(name, [type(value).__name__ for value in arguments_of(inputs)])
    for place, value in _leaves(inputs, "example_inputs"):
        if value is not None and not isinstance(value, (torch.Tensor, *PLAIN)):
            kind = type(value).__name__
            raise InvalidInput(
                f"{name!r}: {place} is a {kind}, neither a tensor nor a plain value.",
                thing=place,
                value=kind,
                remedy="Give tensors, numbers, strings and None, in tuples, lists and dicts.",
            )
    return inputs


def _no_inputs(name: str, kinds: object) -> InvalidInput:
    return InvalidInput(
        f"{name!r}: example_inputs must be a tuple of tensors or a dict of keyword arguments, got "
        f"{kinds}.",
        thing="example_inputs",
        value=kinds,
        remedy="Give one batch, e.g. (images, labels), or a dict as in model(**batch).",
    )


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{place}[{key!r}]")
    elif isinstance(value, tuple | list) and not isinstance(value, PLAIN):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{place}[{index}]")
    else:
        yield place, value


def input_tensors(inputs: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers, in order."""
    return [value for _, value in _leaves(inputs, "") if isinstance(value, torch.Tensor)]


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same containers with every tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(part, change) for key, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return changed
        same = copy.copy(value)  # a tokenizer's batch, say, of which a model reads attributes
        for key, part in changed.items():
            same[key] = part
        return same
    if isinstance(value, tuple | list) and not isinstance(value, PLAIN):
        parts = [map_tensors(part, change) for part in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def arguments_of(inputs: Inputs) -> list[Any]:
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def batch_size_of(inputs: Inputs) -> int | None:
    """The leading dimension that most tensors have, of those that are equally frequent the first.
    A list among the arguments is a batch of samples, unless its tensors begin with a dimension that
    others have, too. None where nothing has a dimension."""
    whole = [argument for argument in arguments_of(inputs) if not isinstance(argument, list)]
    common = set(_leading_sizes(whole))
    sizes: Counter[int] = Counter()
    for argument in arguments_of(inputs):
        leading = _leading_sizes(argument)
        if isinstance(argument, list) and leading and not common.intersection(leading):
            leading = [len(argument)]
        sizes.update(leading)
    return sizes.most_common(1)[0][0] if sizes else None


def _leading_sizes(value: Any) -> list[int]:
    return [int(tensor.shape[0]) for tensor in input_tensors(value) if tensor.dim()]


def has_batch_size(inputs: Inputs, batch_size: int) -> bool:
    return any(batch_size in tensor.shape for tensor in input_tensors(inputs)) or any(
        _is_sample_list(argument, batch_size) for argument in arguments_of(inputs)
    )


def resize_batch(inputs: Inputs, batch_size: int, factor: int, device: RecordingDevice) -> Inputs:
    """The inputs on the recording device, for a batch `factor` times as large.

    The batch dimension of a tensor is its first dimension of size `batch_size`; a list of
    `batch_size` samples becomes longer.
    """

    def longer(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if batch_size in shape:
            shape[shape.index(batch_size)] *= factor
        made = same(tensor) if factor == 1 else device.empty(shape, tensor)
        return made.requires_grad_(tensor.requires_grad)

    def same(tensor: torch.Tensor) -> torch.Tensor:
        return device.copy(tensor).requires_grad_(tensor.requires_grad)

    def resized(argument: Any) -> Any:
        if not _is_sample_list(argument, batch_size):
            return map_tensors(argument, longer)
        return [map_tensors(sample, same) for _ in range(factor) for sample in argument]

    if isinstance(inputs, dict):
        return {key: resized(argument) for key, argument in inputs.items()}
    return tuple(resized(argument) for argument in inputs)


def _is_sample_list(argument: Any, batch_size: int) -> bool:
    """Whether it is a list of one item a sample, and not of tensors that hold a whole batch."""
    if not isinstance(argument, list) or len(argument) != batch_size:
        return False
    return bool(input_tensors(argument)) and batch_size not in _leading_sizes(argument)


Loss = Callable[..., torch.Tensor]


def parts_in_eval_mode(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost with modules inside and parameters to train, as `from_pretrained` returns
    models. A frozen teacher or a single norm is kept in that mode on purpose."""
    has_parts = next(module.children(), None) is not None
    if not module.training and has_parts and any(p.requires_grad for p in module.parameters()):
        yield module
        return
    for part in module.children():
        yield from parts_in_eval_mode(part)


def warn_of_eval_mode(module: nn.Module) -> None:
    if (part := next(parts_in_eval_mode(module), None)) is not None:
        warnings.warn(
            f"{type(part).__name__} is in eval mode, so this step has no dropout and no gradient "
            "checkpointing. Call .train() on the model before, as a training loop does.",
            stacklevel=3,
        )


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
        named, taken = _keywords_of(loss), _name_of_outputs(loss)
        given = {k: v for k, v in inputs.items() if k != taken and (named is None or k in named)}
        return loss(outputs, **given)
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
    named, for_loss = _named(module.forward), _named(loss) - {_name_of_outputs(loss)}
    rest = _keywords_of(module.forward) is None
    taken = {k: v for k, v in inputs.items() if k in named or (rest and k not in for_loss)}
    return (), taken


def _parameters(function: Callable[..., Any]) -> Collection[inspect.Parameter] | None:
    """Of a function, or of a module's forward; None where it has no readable signature."""
    signed = function.forward if isinstance(function, nn.Module) else function
    try:
        return inspect.signature(signed).parameters.values()
    except (TypeError, ValueError):
        return None


def _required(module: nn.Module, inputs: tuple[Any, ...]) -> int:
    """How many of the inputs are the module's own when there is a loss function."""
    parameters = _parameters(module.forward)
    if parameters is None or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return len(inputs)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = sum(
        parameter.kind in positional and parameter.default is parameter.empty
        for parameter in parameters
    )
    return required or len(inputs)


def _named(function: Callable[..., Any]) -> set[str]:
    """Arguments that the function's signature names."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {each.name for each in _parameters(function) or () if each.kind not in several}


def _name_of_outputs(loss: Callable[..., Any]) -> str | None:
    """What a loss function calls the outputs, which no input can be given as."""
    first = next(iter(_parameters(loss) or ()), None)
    if first is None or first.kind is not first.POSITIONAL_OR_KEYWORD:
        return None
    return first.name


def _keywords_of(function: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None where it takes any."""
    parameters = _parameters(function)
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters):
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
    except ValueError:  # a forward without a readable signature: calling it will show
        return
