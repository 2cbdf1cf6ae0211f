"""Values of parameters, whose storages are empty while the host alone has their bytes.

A parameter stays the object it is, and so does all that refers to its storage (a plan's aliases, a
view of the script's): the storage gives its bytes up and gets them back, as in torch's FSDP. They
are given up only where nobody refers to the storage who did not when the forward pass began: an
operation that runs, a view that a module returned, what a checkpointed block saved in its second
forward pass. Whoever reads an empty storage is told so by an error.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autosync.extensions.offload.host_transfers import Transfer
from autosync.extensions.offload.saved_activations import changed_in_place
from autosync.extensions.offload.swapped_bytes import (
    SwapDevice,
    SwappedBytes,
    TensorForm,
    flat_bytes,
    is_plain,
)
from autosync.extensions.offload.value_readers import reading_modules


class SwappedValue(SwappedBytes):
    """A parameter that covers a storage of its own.

    position: among those of the model. users: forward passes of modules that read it now.
    is_kept: it stays for the rest of the pass. is_pinned: nobody tells when its next use ends, so
    it stays until a backward pass or an update has ended, which may be of the next pass.
    is_rewritten: somebody writes it within a pass in a way that torch does not count (through
    `.data`), so that the host's copy is not to be trusted: it stays for good.
    """

    def __init__(self, name: str, parameter: nn.Parameter, position: int, device: SwapDevice):
        super().__init__(flat_bytes(parameter.untyped_storage()), device)
        self.parameter = parameter
        self.position = position
        self.users = 0
        self.is_kept = False
        self.is_pinned = False
        self.is_rewritten = False
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
        self.users = 0
        self.is_kept = False
        self._references = self._count_references()

    def leave(self) -> Transfer:
        if not self.on_host:
            self._version = self.parameter._version
        return super().leave()

    def release(self) -> None:
        """Give the device's bytes up, when the host has them; not while anybody uses them."""
        if self.on_device is None or not self.on_host or self._has_to_stay():
            return
        if self.parameter._version != self._version:
            self._wait_for_copies()  # it was changed since it began to leave
            self._leaving = None
            self.leave()
        self._wait_for_copies()
        if self._count_references() > self._references:
            return
        self.on_device = None
        self._empty()

    def come(self) -> Transfer:
        """Whoever reads it before `bring` has waited is told so, as while it is away."""
        assert self._buffer is not None
        self.device.memory.allow(self._storage)
        try:
            self._storage.resize_(self.size_bytes)
            target = flat_bytes(self._storage)  # which an arena counts
        except BaseException:
            self._empty()
            raise
        with self.device.memory.host_memory():
            self._coming = self.device.transfers.come(self._buffer, target, self._leaving)
        self.on_device = target
        self._forbid()
        return self._coming

    def bring(self) -> Tensor:
        """A tensor that holds its bytes on the device, for the script's work from here on."""
        if self.on_device is None:
            self.come()
        if self._coming is not None:
            self.device.transfers.wait(self._coming)
        self.device.memory.allow(self._storage)
        assert self.on_device is not None
        return self.on_device

    def compare(self) -> None:
        """Note whether it was written uncounted since the host has it; waits for the device."""
        if self.on_device is None or self._leaving is None or self._buffer is None:
            return
        self.device.transfers.finish(self._leaving)
        counted = self.parameter._version != self._version
        with self.device.memory.host_memory():
            self.is_rewritten |= not (counted or torch.equal(self.on_device.cpu(), self._buffer))

    def _has_to_stay(self) -> bool:
        return self.users > 0 or self.is_kept or self.is_pinned or self.is_rewritten

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
            "them (swap.values). They are on the device while their module's forward or backward "
            "pass uses them, and from the end of backward() until the next forward pass begins. "
            "Read or write them then, or leave swap.values out.",
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

    tensors: in the order of modules. readers: see `reading_modules`. smallest_bytes: of those that
    are swapped.
    """

    def __init__(
        self, model: nn.Module, device: SwapDevice, smallest_bytes: int, are_swapped: bool
    ) -> None:
        self.tensors: list[SwappedValue] = []
        self.readers: dict[nn.Module, list[int]] = {}
        self.are_swapped = are_swapped
        self._model = model
        self._device = device
        self._smallest_bytes = smallest_bytes
        self._of_module: dict[int, list[SwappedValue]] = {}
        self._of_parameter: dict[int, SwappedValue] = {}
        self._read_apart: list[tuple[nn.Module, nn.Parameter]] = []
        self._has_learned = False
        self._of_storage: dict[int, SwappedValue] = {}

    def refresh(self) -> None:
        """Find what the script has added or given another storage since; all of them are here."""
        if not self.are_swapped:
            return
        known = {id(value.parameter): value for value in self.tensors}
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
        self.readers = reading_modules(self._model, self._of_parameter.keys())
        for module, parameter in self._read_apart:
            if id(parameter) in self._of_parameter:
                self.readers.setdefault(module, []).append(id(parameter))
        self._of_module = {
            id(module): [self._of_parameter[parameter] for parameter in read]
            for module, read in self.readers.items()
        }

    def begin(self) -> None:
        """A pass's forward begins."""
        for value in self.tensors:
            value.begin()

    def sizes(self) -> tuple[int, ...]:
        """Bytes of each."""
        return tuple(value.size_bytes for value in self.tensors)

    def of(self, parameter: nn.Parameter) -> SwappedValue | None:
        return self._of_parameter.get(id(parameter))

    def add_reader(self, module: nn.Module, value: SwappedValue) -> None:
        """It was seen to read a value that it does not own."""
        self._has_learned = True
        self._read_apart.append((module, value.parameter))
        self._of_module.setdefault(id(module), []).append(value)

    def take_learned(self) -> bool:
        """Whether a reader was added since the last call: passes are then not as before."""
        learned, self._has_learned = self._has_learned, False
        return learned

    def read_by(self, module: nn.Module) -> list[SwappedValue]:
        """Those that the forward pass of a module reads itself."""
        return self._of_module.get(id(module), [])

    def are_current(self) -> bool:
        """Whether they all have the storages that they had."""
        return all(value.lies_in(value.parameter) for value in self.tensors)

    def around(self, tensor: Tensor) -> SwappedValue | None:
        """The one whose storage the tensor lies in."""
        return self._of_storage.get(tensor.untyped_storage()._cdata)

    def copy_out(self) -> int:
        """All to the host that it does not have; returns the bytes that were copied."""
        leaving = [each for each in self.tensors if each.on_device is not None and not each.on_host]
        for transfer in [value.leave() for value in leaving]:
            self._device.transfers.finish(transfer)
        return sum(value.size_bytes for value in leaving)

    def come_home(self, chosen: Sequence[SwappedValue] | None = None) -> int:
        """To the device, by default all, those on their way too; returns the bytes that were copied
        for it."""
        chosen = self.tensors if chosen is None else chosen
        away = [value for value in chosen if value.on_device is None]
        for coming in [value.come() for value in away]:
            self._device.transfers.finish(coming)
        for value in chosen:
            value.bring()
        return sum(value.size_bytes for value in away)

    def are_here(self) -> bool:
        return all(value.on_device is not None for value in self.tensors)

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
