"""Where a step is recorded: on tensors that have shapes but no memory, or on real ones.

The meta device is twice as fast as fake tensors. These say that they are on the CPU, know the
values of constants, and tell libraries that a graph is being recorded, which then skip their checks
of values. So a step is recorded on the meta device, and again on fake tensors where that fails.
What it does may still depend on values (experts that only some words visit, boxes matched to
targets): that can be recorded with real tensors only. The module is copied to its device.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from autosync.errors import NotTraceable
from autosync.importing.refusals import first_line


class RecordingDevice:
    """Real tensors on the CPU; its subclasses have shapes alone.

    name: in words. has_values: its tensors hold numbers. autocast: the dtype of mixed precision.
    """

    name = "the CPU"
    has_values = True

    def __init__(self, autocast: torch.dtype | None = None) -> None:
        self.autocast = autocast

    def active(self) -> Any:
        """Tensors made inside are of this device."""
        return torch.device("cpu")

    def precision(self) -> Any:
        """What the forward pass runs under: autocast, or nothing."""
        return under_autocast(self.autocast, "cpu")

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape, and of another one's dtype."""
        return torch.empty(shape, dtype=like.dtype)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape, strides and dtype."""
        return tensor.detach().to("cpu", copy=True)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is of this device."""
        return tensor.device.type == "cpu"

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        """For a tensor that came from elsewhere (a constant that is no buffer of the module)."""
        return tensor


class MetaDevice(RecordingDevice):
    name = "the meta device"
    has_values = False

    def active(self) -> Any:
        return torch.device("meta")

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device="meta")

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("meta")

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "meta"

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.holds(tensor) or tensor.dim() == 0 else tensor.to("meta")


class FakeTensors(RecordingDevice):
    name = "fake tensors"
    has_values = False

    def __init__(self, autocast: torch.dtype | None = None) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode  # a second to load

        super().__init__(autocast)
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def active(self) -> Iterator[None]:
        log = logging.getLogger("torch._subclasses.fake_tensor")
        silenced, log.disabled = log.disabled, True  # it logs a traceback beside the error
        try:
            with torch.device("cpu"), self._mode:
                yield
        finally:
            log.disabled = silenced

    def empty(self, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        with self._mode:
            return torch.empty(shape, dtype=like.dtype, device="cpu")

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided:
            return self._mode.from_tensor(tensor.detach())
        with self._mode:
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"
            )

    def holds(self, tensor: torch.Tensor) -> bool:
        return getattr(tensor, "fake_mode", None) is self._mode

    def adopted(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.copy(tensor) if tensor.device.type == "meta" else tensor


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


def under_autocast(dtype: torch.dtype | None, device_type: str) -> Any:
    """What a forward pass runs under: autocast to this type, or nothing."""
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)


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
