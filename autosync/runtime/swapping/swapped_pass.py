"""A forward and a backward pass whose saved tensors may be elsewhere: what every such pass does."""

import weakref
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from autosync.runtime.swapping.saved_activations import (
    SavedActivation,
    SavedTensor,
    SwapDevice,
    UnswappedTensor,
)

Packed = SavedTensor | UnswappedTensor


class SwappedPass(ABC):
    """unswapped: storages that stay (those of parameters and buffers). smallest_bytes: smaller
    ones stay as well.

    Tensors that lie in one storage are one activation, which is saved and comes back whole.
    """

    def __init__(self, device: SwapDevice, unswapped: set[int], smallest_bytes: int) -> None:
        self.device = device
        self.has_used = False
        self._unswapped = unswapped
        self._smallest_bytes = smallest_bytes
        self._saved = 0
        self._by_storage: weakref.WeakValueDictionary[int, SavedActivation] = (
            weakref.WeakValueDictionary()
        )
        self._held: weakref.WeakSet[SavedTensor] = weakref.WeakSet()

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
            saved = SavedTensor(
                activation,
                self,
                tensor.dtype,
                int(tensor.storage_offset()),
                tensor.shape,
                tensor.stride(),
            )
            self._held.add(saved)
            return saved

    def unpack(self, saved: SavedTensor) -> Tensor:
        with torch.no_grad():
            self.has_used = True
            return saved.within(self._use(saved.activation))

    @abstractmethod
    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        """It was saved, for the first time or once more."""

    @abstractmethod
    def _use(self, activation: SavedActivation) -> Tensor:
        """Its bytes on the device, for the backward that runs now."""

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
