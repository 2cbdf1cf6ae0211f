"""The state of optimizers, whose tensors wait in host memory while nobody updates.

`optimizer.state` always holds the values: a tensor of the host while they are away, one of the
device when they are needed. So whoever saves, copies or reads it finds them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.extensions.offload.device import SwapDevice, Transfer
from autosync.extensions.offload.swapped_tensors import SwappedBytes, form_of, is_plain
from autosync.runtime.updates.optimizers import held_state

State = dict[str, Any]
"""What an optimizer keeps of one parameter."""


class StateTensor(SwappedBytes):
    """`state[key]` of optimizer number `owner`, which has a storage of its own. shown: what stands
    there."""

    def __init__(self, state: State, key: str, owner: int, device: SwapDevice) -> None:
        self.shown: Tensor = state[key]
        super().__init__(self.shown, device)
        self.owner = owner
        self._state = state
        self._key = key
        self._form = form_of(self.shown)
        self._version = self.shown._version
        device.memory.count([self.shown])

    def is_at(self, state: State, key: str) -> bool:
        """Whether it still is what stands there."""
        return self._state is state and state.get(key) is self.shown

    def leave(self) -> Transfer:
        if not self.on_host:
            self._version = self.shown._version
        return super().leave()

    def release(self) -> None:
        if self.on_device is None or not self.on_host:
            return
        if self._is_shown_of(self.on_device) and self.shown._version != self._version:
            self._wait_for_copies()  # of what the script has changed since
            self._leaving = None
            self.leave()
        super().release()
        assert self._buffer is not None
        with self.device.memory.host_memory():
            self._show(self._buffer)

    def bring(self) -> None:
        """For an update, which changes it: what the host has is of no use behind that."""
        changed = self.shown._version != self._version  # by the script, where the host has it
        if self.on_device is None or (changed and not self._is_shown_of(self.on_device)):
            self.come()
        self._wait_for_copies()
        assert self.on_device is not None
        if not self._is_shown_of(self.on_device):
            self._show(self.on_device)
        self._leaving = None

    def _is_shown_of(self, held: Tensor) -> bool:
        return bool(held.untyped_storage()._cdata == self.shown.untyped_storage()._cdata)

    def _show(self, held: Tensor) -> None:
        tensor = self._form.within(held)
        version = tensor._version  # an inference tensor has none, and must not be shown
        if self._state.get(self._key) is self.shown:  # else the script has put another there
            self._state[self._key] = tensor
        self.shown, self._version = tensor, version


class SwappedStates:
    """Of some optimizers, which may be none.

    tensors: in the order of parameters. smallest_bytes: of those that are swapped.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], device: SwapDevice, smallest_bytes: int
    ) -> None:
        self.optimizers = tuple(optimizers)
        self.tensors: list[StateTensor] = []
        self._device = device
        self._smallest_bytes = smallest_bytes

    def refresh(self) -> None:
        """Find what optimizers have made, loaded or replaced since."""
        known = {(id(each._state), each._key): each for each in self.tensors}
        tensors = []
        for number, optimizer in enumerate(self.optimizers):
            for state, key in self._swappable(optimizer):
                before = known.get((id(state), key))
                if before is None or not before.is_at(state, key):
                    before = StateTensor(state, key, number, self._device)
                tensors.append(before)
        self.tensors = tensors

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """The number of each tensor's optimizer, and its bytes."""
        return tuple((tensor.owner, tensor.size_bytes) for tensor in self.tensors)

    def device_bytes(self) -> int:
        """How much of it is on the device."""
        return sum(tensor.size_bytes for tensor in self.tensors if tensor.on_device is not None)

    def put_away(self, places: Sequence[int] | None = None) -> int:
        """To the host, by default all; returns the bytes that had to be copied."""
        chosen = self.tensors if places is None else [self.tensors[place] for place in places]
        held = [tensor for tensor in chosen if tensor.on_device is not None]
        copied = sum(tensor.size_bytes for tensor in held if not tensor.on_host)
        leaving = [tensor.leave() for tensor in held]
        for tensor, transfer in zip(held, leaving, strict=True):
            self._device.transfers.finish(transfer)
            tensor.release()
        return copied

    def fetch(self, number: int) -> int:
        """What is away of an optimizer's, for `bring`; returns the bytes that were copied."""
        away = [tensor for tensor in self._of(number) if tensor.on_device is None]
        for coming in [tensor.come() for tensor in away]:
            self._device.transfers.finish(coming)
        return sum(tensor.size_bytes for tensor in away)

    def bring(self, number: int) -> None:
        """All of an optimizer's on the device, for an update."""
        for tensor in self._of(number):
            tensor.bring()

    def _of(self, number: int) -> list[StateTensor]:
        return [tensor for tensor in self.tensors if tensor.owner == number]

    def _swappable(self, optimizer: Optimizer) -> Iterator[tuple[State, str]]:
        """What is large, dense and shares its memory with nothing else that trains."""
        parameters = list(chain.from_iterable(g["params"] for g in optimizer.param_groups))
        held = [held_state(optimizer).get(p) for p in parameters]
        states = [state for state in held if isinstance(state, dict)]
        storages = Counter(p.untyped_storage()._cdata for p in parameters if is_plain(p))
        entries = [(s, key, s[key]) for s in states for key in s if is_plain(s[key])]
        storages.update(value.untyped_storage()._cdata for _, _, value in entries)
        known = {id(tensor.shown) for tensor in self.tensors}
        for state, key, value in entries:
            storage = value.untyped_storage()
            here = value.device == self._device.memory.device or id(value) in known
            large = storage.nbytes() >= self._smallest_bytes
            if here and large and storages[storage._cdata] == 1:
                yield state, key
