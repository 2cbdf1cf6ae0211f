"""Copies of modules that have shapes but no memory."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from autosync.errors import NotTraceable
from autosync.importing.error_location import first_line
from autosync.importing.recording_devices import RecordingDevice


def copied_module(
    module_or_factory: nn.Module | Callable[[], nn.Module], device: RecordingDevice, name: str
) -> nn.Module:
    """The module on the recording device; a given module stays as it is. Of a compiled one, or of
    one in torch's DDP or DataParallel, the module inside.

    Raises:
        NotTraceable: the factory fails there, or makes no module.
    """
    if isinstance(module_or_factory, nn.Module):
        return _copy_without_values(unwrapped(module_or_factory), device, name)
    try:
        with device.active():
            module = module_or_factory()
    except Exception as error:  # the user's own code may raise anything
        raise NotTraceable(
            f"{name!r}: building the module on {device.name} fails: {first_line(error)}.",
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
    module = unwrapped(module)
    if all(device.holds(value) for value in (*module.parameters(), *module.buffers())):
        return _uncompiled(module)
    return _copy_without_values(module, device, name)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module whose names a training script knows: without torch.compile, DDP, DataParallel."""
    while True:
        inner = module._modules.get("_orig_mod")
        if isinstance(module, DataParallel | DistributedDataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def _uncompiled(module: nn.Module) -> nn.Module:
    for part in module.modules():
        part._compiled_call_impl = None  # of `module.compile()`
    return module


def _copy_without_values(module: nn.Module, device: RecordingDevice, name: str) -> nn.Module:
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(value, torch.Tensor) and id(value) not in memo:
                memo[id(value)] = _without_memory(value, device, name)
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
    return _uncompiled(copied)


def _without_memory(tensor: torch.Tensor, device: RecordingDevice, name: str) -> torch.Tensor:
    if nn.parameter.is_lazy(tensor):
        raise NotTraceable(
            f"{name!r} has a lazy parameter, whose shape is not known before its first use.",
            thing="parameter",
            value=type(tensor).__name__,
            remedy="Run the module once on an example, or name the sizes in its constructor.",
        )
    empty = device.copy(tensor)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
