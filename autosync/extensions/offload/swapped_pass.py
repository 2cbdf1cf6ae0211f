"""A forward and a backward pass whose saved tensors may be elsewhere: what every such pass does.

Where the optimizers' state or values are swapped, updates belong to the pass, which then reaches
from one update to the next.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Variable as Autograd

from autosync.extensions.offload.saved_activations import (
    SavedActivation,
    SavedTensor,
    UnswappedTensor,
)
from autosync.extensions.offload.swapped_bytes import (
    SwapDevice,
    form_of,
    is_plain,
    ordinary_tensors,
)
from autosync.extensions.offload.swapped_states import SwappedStates
from autosync.extensions.offload.swapped_values import SavedValue, SwappedValue, SwappedValues
from autosync.runtime.execution.model_checks import within_backward

Packed = SavedTensor | SavedValue | UnswappedTensor


@dataclass(frozen=True, slots=True)
class SwappedParts:
    """What passes of a model have in common.

    unswapped: storages that stay (those of parameters and buffers). smallest_bytes: smaller ones
    stay as well. states: of the optimizers, which wait on the host between updates. values: of the
    parameters, which wait there between their uses in a pass.
    """

    device: SwapDevice
    unswapped: set[int]
    smallest_bytes: int
    states: SwappedStates
    values: SwappedValues


class SwappedPass(ABC):
    """has_used: whether its backward pass has begun. has_updated: whether an optimizer has stepped.
    moves_values: from the begin of a forward pass to the end of the backward pass.

    Tensors that lie in one storage are one activation, which is saved and comes back whole.
    """

    def __init__(self, parts: SwappedParts) -> None:
        self.device = parts.device
        self.states = parts.states
        self.values = parts.values
        self.has_used = False
        self.has_updated = False
        self._unswapped = parts.unswapped
        self._smallest_bytes = parts.smallest_bytes
        self._saved = 0
        self._by_storage: weakref.WeakValueDictionary[int, SavedActivation] = (
            weakref.WeakValueDictionary()
        )
        self._held: weakref.WeakSet[Packed] = weakref.WeakSet()
        self.moves_values = False
        self._end_is_expected = False
        self._read_apart: list[SwappedValue] = []
        self._on_demand: list[SwappedValue] = []

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has happened in it."""
        return not (self._saved or self.is_told or self.moves_values)

    @property
    def is_told(self) -> bool:
        """Whether it tells what a pass does: its backward pass or an update has begun."""
        return self.has_used or self.has_updated

    @property
    def is_held(self) -> bool:
        """Whether a backward pass may still come for what was saved."""
        return len(self._held) > 0

    def begin_forward(self) -> None:
        """The model's own forward begins, and values may leave from here on."""
        if self.has_updated or not self.values.tensors:
            return
        self._end_is_expected = False
        if not self.moves_values:
            self.moves_values = True
            self.values.begin()
        with torch.no_grad():
            self._begin_forward()

    def read(self, values: Iterable[SwappedValue]) -> None:
        """They are about to be read: they are on the device from here on."""
        if self.moves_values:
            with ordinary_tensors():
                for value in values:
                    self._use_value(value)

    def end_reads_apart(self) -> None:
        """A module begins or ends, so no operation is going on that reads a value of another."""
        for value in self._read_apart:
            value.users = max(0, value.users - 1)
        self._read_apart.clear()

    def stay(self) -> None:
        """All values are on the device from here to the end of the pass."""
        if self.moves_values:
            with ordinary_tensors():
                self._keep_values()

    def pack(self, tensor: Tensor) -> Packed:
        """For `saved_tensors_hooks`: what autograd holds instead."""
        with torch.no_grad():
            saved = self._packed(tensor)
            self._held.add(saved)
            return saved

    def unpack(self, saved: Packed) -> Tensor:
        with torch.no_grad():
            self.has_used = True
            self._expect_end()
            if isinstance(saved, UnswappedTensor):
                return saved.unpacked()
            if isinstance(saved, SavedTensor):
                return saved.form.within(self._use(saved.activation))
            saved.check()
            self.read([saved.value])
            return saved.form.within(saved.value.bring())

    def update(self, number: int) -> None:
        """An optimizer is about to step: its state and all values are on the device then."""
        with torch.no_grad():
            self.has_updated = True
            self.moves_values = False
            self._bring_for_update(number)
        self.values.unpin()

    def end_backward(self) -> None:
        """All values are on the device until the next forward pass begins."""
        if self.moves_values:
            self.moves_values = False
            with torch.no_grad():
                self._bring_values()
            self.values.unpin()

    def _expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. (Of the inner one of a
        reentrant checkpoint, if that comes first: values are then back sooner.)"""
        if self.moves_values and not self._end_is_expected and within_backward():
            self._end_is_expected = True
            Autograd._execution_engine.queue_callback(self.end_backward)

    @abstractmethod
    def _begin_forward(self) -> None:
        """Values may leave."""

    @abstractmethod
    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        """It was saved, for the first time or once more."""

    @abstractmethod
    def _use(self, activation: SavedActivation) -> Tensor:
        """Its bytes on the device, for the backward that runs now."""

    @abstractmethod
    def _use_value(self, value: SwappedValue) -> None:
        """On the device, for the forward or backward that runs now."""

    @abstractmethod
    def _keep_values(self) -> None:
        """All of them on the device, for whoever reads them now."""

    @abstractmethod
    def _bring_values(self) -> None:
        """All of them, where the backward pass ends."""

    @abstractmethod
    def _bring_for_update(self, number: int) -> None:
        """The state of an optimizer, and all values."""

    def _packed(self, tensor: Tensor) -> Packed:
        if self._is_ordinary(tensor):
            if (value := self.values.around(tensor)) is not None:
                self._read_outside_its_module(value)
                return SavedValue(value, self, form_of(tensor), value.parameter._version)
            if self._is_swappable(tensor):
                activation, is_new = self._activation_of(tensor)
                self._save(activation, is_new)
                return SavedTensor(activation, self, form_of(tensor))
        return UnswappedTensor(tensor.detach(), self, tensor._version)

    def _read_outside_its_module(self, value: SwappedValue) -> None:
        """Nobody tells when the operation ends that reads it: not before a module begins or ends.
        (Inside of its module it is here already.)"""
        if value.users == 0 and self.moves_values:
            value.users += 1
            self._read_apart.append(value)
            self._use_value(value)

    def _put_values_away(self) -> list[SwappedValue]:
        """From here on they come on demand; returns those that are gone."""
        self._on_demand = [each for each in self.values.tensors if each.on_device is not None]
        return self._give_up_values()

    def _give_up_values(self) -> list[SwappedValue]:
        """What came on demand and is used no more; returns those that are gone."""
        for value in self._on_demand:
            if not value.users:
                value.leave()
        gone: list[SwappedValue] = []
        here: list[SwappedValue] = []
        for value in self._on_demand:
            value.release()
            (here if value.on_device is not None else gone).append(value)
        self._on_demand = here
        return gone

    def _is_ordinary(self, tensor: Tensor) -> bool:
        """Whether its bytes tell what it is."""
        if not is_plain(tensor) or tensor.is_conj() or tensor.is_neg():
            return False
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        return tensor.device == self.device.memory.device

    def _is_swappable(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self._smallest_bytes and storage._cdata not in self._unswapped

    def _activation_of(self, tensor: Tensor) -> tuple[SavedActivation, bool]:
        """The activation whose storage the tensor lies in, and whether it is new."""
        storage = tensor.untyped_storage()
        known = self._by_storage.get(storage._cdata)
        if known is not None and known.watch() is storage and known.version == tensor._version:
            return known, False
        made = SavedActivation(self._saved, tensor, self.device)
        self._by_storage[storage._cdata] = made
        self._saved += 1
        return made, True


def release_all(activations: list[weakref.ref[SavedActivation]]) -> None:
    """Give up the bytes of those that the host has."""
    for reference in activations:
        activation = reference()
        if activation is not None and activation.on_host:
            activation.release()
