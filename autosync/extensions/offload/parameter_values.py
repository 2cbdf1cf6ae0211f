"""Values of parameters, whose storages are empty while the host alone has their bytes.

A parameter stays the object it is, and so does all that refers to its storage (a plan's aliases, a
view of the script's): the storage gives its bytes up and gets them back, as in torch's FSDP. As in
GeePS, values are read before they are used: by every operation of a forward pass that is given a
parameter, and by the backward of those that keep one.

Bytes are given up only where nobody refers to the storage who did not when the forward pass began:
an operation that runs, a view that a module returned, what a checkpointed block saved in its second
forward pass. Whoever reads an empty storage gets an error that names the parameter.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from autosync.extensions.offload.device import SwapDevice, Transfer
from autosync.extensions.offload.swapped_tensors import (
    SwappedBytes,
    TensorForm,
    changed_in_place,
    flat_bytes,
    is_plain,
)
from autosync.runtime.execution.pending import READS_NO_VALUE

NO_READS = READS_NO_VALUE | {
    Tensor._version.__get__,  # type: ignore[attr-defined]  # torch says int
    Tensor.untyped_storage,
    Tensor.is_contiguous,
    Tensor.is_conj,
    Tensor.is_neg,
    Tensor.stride,
    Tensor.storage_offset,
}
"""What passes of their own ask of a parameter, and forward passes of its form alone."""

UNCOUNTED = Tensor.data.__get__  # type: ignore[attr-defined]  # torch says Tensor
"""Writes to what it returns are not counted in a parameter's version."""


class SwappedValue(SwappedBytes):
    """A parameter that covers a storage of its own.

    position: among those of the model. users: operations that read it now. is_kept: it stays for
    the rest of the pass. is_pinned: nobody tells when its next use ends, so it stays until a
    backward pass or an update has ended, which may be of the next pass. is_uncounted: a forward
    pass has asked for its `.data`, and may write there without torch counting it. The host's copy
    is not to be trusted then: it stays for good.
    """

    def __init__(self, name: str, parameter: nn.Parameter, position: int, device: SwapDevice):
        super().__init__(flat_bytes(parameter.untyped_storage()), device)
        self.parameter = parameter
        self.position = position
        self.users = 0
        self.is_kept = False
        self.is_pinned = False
        self.is_uncounted = False
        self._name = name
        self._storage = parameter.untyped_storage()
        self._version = parameter._version
        self._references = 0

    def lies_in(self, parameter: nn.Parameter) -> bool:
        """Whether that is its parameter, with the storage that it had."""
        return self.parameter is parameter and parameter.untyped_storage() is self._storage

    def begin(self) -> None:
        """A forward pass begins, and everything is here. What the host has is old: whoever wrote
        values since, through `.data` perhaps, was not counted."""
        assert self.on_device is not None
        self._wait_for_copies()
        self._leaving = None
        self.is_kept = False
        self._references = self._count_references()

    def release(self) -> None:
        """Give the device's bytes up, when the host has them; not while anybody uses them."""
        if self.users or self.is_kept or self.is_pinned or self.is_uncounted:
            return
        if self.on_device is None or not self.on_host:
            return
        self._wait_for_copies()  # which refer to the storage
        if self._count_references() <= self._references:
            super().release()
            self._empty()

    def come(self) -> Transfer:
        """Whoever reads it before `bring` has waited gets an error, as while it is away."""
        self.device.memory.allow(self._storage)
        try:
            self._storage.resize_(self.size_bytes)
            target = flat_bytes(self._storage)  # which an arena counts
        except BaseException:
            self._empty()
            raise
        coming = self._come_to(target)
        self._forbid()
        return coming

    def bring(self) -> Tensor:
        """A tensor that holds its bytes on the device, for the script's work from here on."""
        if self.on_device is None:
            self.come()
        if self._coming is not None:
            self.device.transfers.wait(self._coming)
        self.device.memory.allow(self._storage)
        assert self.on_device is not None
        return self.on_device

    def _note_version(self) -> None:
        self._version = self.parameter._version

    def _is_written(self) -> bool:
        return self.parameter._version != self._version

    def _count_references(self) -> int:
        return torch._C._storage_Use_Count(self._storage._cdata)

    def _empty(self) -> None:
        self.device.memory.allow(self._storage)  # to this method, where it is still on its way
        self._storage.resize_(0)
        with self.device.memory.host_memory():  # not counted yet, it may still be one too many
            nothing = flat_bytes(self._storage)
        self._forbid()
        self.device.memory.count([nothing])

    def _forbid(self) -> None:
        self.device.memory.forbid(
            self._storage,
            f"the values of parameter {self._name!r} are in host memory: this training step swaps "
            "them (swap.values). They are on the device while an operation of the model's forward "
            "or backward pass reads them, and from the end of backward() until the next forward "
            "pass begins. Read or write them then, or leave swap.values out.",
        )


@dataclass(frozen=True, eq=False)
class SavedValue:
    """What autograd holds in place of a tensor that lies in a value. swapped_pass: in which it was
    saved. version: of the parameter then."""

    value: SwappedValue
    swapped_pass: Any
    form: TensorForm
    version: int

    def check(self) -> None:
        """Raises InvalidInput where somebody has changed the parameter since."""
        if changes := self.value.parameter._version - self.version:
            raise changed_in_place(changes)


class SwappedValues:
    """Of a model's parameters; none where values are not swapped.

    tensors: in the order of parameters. smallest_bytes: of those that are swapped.
    """

    def __init__(
        self, model: nn.Module, device: SwapDevice, smallest_bytes: int, are_swapped: bool
    ) -> None:
        self.tensors: list[SwappedValue] = []
        self.are_swapped = are_swapped
        self._model = model
        self._device = device
        self._smallest_bytes = smallest_bytes
        self._of_parameter: dict[int, SwappedValue] = {}
        self._of_storage: dict[int, SwappedValue] = {}

    def refresh(self) -> None:
        """Find what the script has added or given another storage since; all of them are here."""
        if not self.are_swapped:
            return
        known = self._of_parameter
        found: list[SwappedValue] = []
        for name, parameter in self._swappable():
            value = known.get(id(parameter))
            if value is None or not value.lies_in(parameter):
                value = SwappedValue(name, parameter, len(found), self._device)
            value.position = len(found)
            found.append(value)
        self.tensors = found
        self._of_storage = {each.parameter.untyped_storage()._cdata: each for each in found}
        self._of_parameter = {id(value.parameter): value for value in found}

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each."""
        return tuple(value.size_bytes for value in self.tensors)

    def of(self, parameter: nn.Parameter) -> SwappedValue | None:
        return self._of_parameter.get(id(parameter))

    def around(self, tensor: Tensor) -> SwappedValue | None:
        """The one whose storage the tensor lies in."""
        return self._of_storage.get(tensor.untyped_storage()._cdata)

    def are_current(self) -> bool:
        """Whether they all have the storages that they had."""
        return all(value.lies_in(value.parameter) for value in self.tensors)

    def are_here(self) -> bool:
        return all(value.on_device is not None for value in self.tensors)

    def come_home(self) -> int:
        """All to the device, those on their way too; returns the bytes that were copied for it."""
        away = [value for value in self.tensors if value.on_device is None]
        for coming in [value.come() for value in away]:
            self._device.transfers.finish(coming)
        for value in self.tensors:
            value.bring()
        return sum(value.size_bytes for value in away)

    def keep(self) -> int:
        """All on the device for the rest of the pass; returns the bytes that were copied."""
        for value in self.tensors:
            value.is_kept = True
        return self.come_home()

    def unpin(self) -> None:
        """A backward pass or an update has ended, and all uses before it."""
        for value in self.tensors:
            value.is_pinned = False

    def _swappable(self) -> list[tuple[str, nn.Parameter]]:
        """What is large, dense and covers a storage that nothing else of the model lies in."""
        parameters = dict(self._model.named_parameters())
        alike = [*parameters.values(), *self._model.buffers()]
        sharing = Counter(each.untyped_storage()._cdata for each in alike if is_plain(each))
        return [
            (name, parameter)
            for name, parameter in parameters.items()
            if is_plain(parameter)
            and self._is_worth_a_transfer(parameter)
            and sharing[parameter.untyped_storage()._cdata] == 1
        ]

    def _is_worth_a_transfer(self, parameter: nn.Parameter) -> bool:
        storage = parameter.untyped_storage()
        return (
            parameter.device == self._device.memory.device
            and storage.nbytes() >= self._smallest_bytes
            and storage.nbytes() == parameter.numel() * parameter.element_size()
            and storage.resizable()
        )


class ParameterReads(TorchFunctionMode):
    """Within, `reading(values)` is entered around every operation that is given some values."""

    def __init__(
        self,
        values: SwappedValues,
        reading: Callable[[list[SwappedValue]], AbstractContextManager[None]],
    ) -> None:
        super().__init__()
        self._values = values
        self._reading = reading

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in NO_READS:
            return func(*args, **given)
        parameters = (each for each in tree_iter((args, given)) if isinstance(each, nn.Parameter))
        values = [value for each in parameters if (value := self._values.of(each)) is not None]
        if not values:
            return func(*args, **given)
        for value in values:
            value.is_uncounted |= func == UNCOUNTED
        with self._reading(values):
            return func(*args, **given)
