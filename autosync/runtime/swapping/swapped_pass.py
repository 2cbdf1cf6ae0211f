"""A forward and a backward pass whose saved tensors may be elsewhere: what every such pass does.

Where the optimizers' state is swapped, their updates belong to the pass, which then reaches from
one update to the next.
"""

import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from autosync.runtime.swapping.saved_activations import (
    SavedActivation,
    SavedTensor,
    UnswappedTensor,
)
from autosync.runtime.swapping.swapped_bytes import SwapDevice
from autosync.runtime.swapping.swapped_states import SwappedStates, form_of

Packed = SavedTensor | UnswappedTensor


@dataclass(frozen=True, slots=True)
class SwappedParts:
    """What passes of a model have in common.

    unswapped: storages that stay (those of parameters and buffers). smallest_bytes: smaller ones
    stay as well. states: of the optimizers, which wait on the host between updates.
    """

    device: SwapDevice
    unswapped: set[int]
    smallest_bytes: int
    states: SwappedStates


class SwappedPass(ABC):
    """has_used: whether its backward pass has begun. has_updated: whether an optimizer has stepped.

    Tensors that lie in one storage are one activation, which is saved and comes back whole.
    """

    def __init__(self, parts: SwappedParts) -> None:
        self.device = parts.device
        self.states = parts.states
        self.has_used = False
        self.has_updated = False
        self._unswapped = parts.unswapped
        self._smallest_bytes = parts.smallest_bytes
        self._saved = 0
        self._by_storage: weakref.WeakValueDictionary[int, SavedActivation] = (
            weakref.WeakValueDictionary()
        )
        self._held: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has happened in it."""
        return not self._saved and not self.has_updated

    @property
    def is_told(self) -> bool:
        """Whether it tells what a pass does: its backward pass or an update has begun."""
        return self.has_used or self.has_updated

    @property
    def is_held(self) -> bool:
        """Whether a backward pass may still come for what was saved."""
        return len(self._held) > 0

    def pack(self, tensor: Tensor) -> Packed:
        """For `saved_tensors_hooks`: what autograd holds instead."""
        with torch.no_grad():
            if not self._is_swappable(tensor):
                return UnswappedTensor(tensor.detach(), tensor._version)
            activation, is_new = self._activation_of(tensor)
            self._save(activation, is_new)
            saved = SavedTensor(activation, self, form_of(tensor))
            self._held.add(saved)
            return saved

    def unpack(self, saved: SavedTensor) -> Tensor:
        with torch.no_grad():
            self.has_used = True
            return saved.form.within(self._use(saved.activation))

    def update(self, number: int) -> None:
        """An optimizer is about to step: its state is on the device from here on."""
        with torch.no_grad():
            self.has_updated = True
            self._bring_state(number)

    @abstractmethod
    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        """It was saved, for the first time or once more."""

    @abstractmethod
    def _use(self, activation: SavedActivation) -> Tensor:
        """Its bytes on the device, for the backward that runs now."""

    @abstractmethod
    def _bring_state(self, number: int) -> None:
        """That of an optimizer."""

    def _is_swappable(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.layout != torch.strided:
            return False
        if tensor.is_conj() or tensor.is_neg():  # which the bytes alone do not tell
            return False
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        if tensor.device != self.device.memory.device:
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
