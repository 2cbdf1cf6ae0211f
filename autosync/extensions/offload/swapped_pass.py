"""A forward and a backward pass whose saved tensors may be elsewhere.

Without a schedule everything leaves when it is saved and comes back when it is used: the least
memory, and the slowest. The first pass of a job runs so and is recorded. A pass with a schedule
follows it as long as it does what the recorded pass did; from there to its end everything goes on
demand: slower, and as exact.

Where the optimizers' state is swapped, updates belong to the pass, which then reaches from one
update to the next.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from autosync.extensions.offload.device import SwapDevice
from autosync.extensions.offload.optimizer_states import SwappedStates
from autosync.extensions.offload.pass_record import (
    Access,
    PassRecord,
    RecordedPass,
    update_access,
)
from autosync.extensions.offload.schedule import SwapSchedule, by_moment
from autosync.extensions.offload.swapped_tensors import (
    SavedActivation,
    SavedTensor,
    SwappedBytes,
    TensorForm,
    UnswappedTensor,
    form_of,
    is_plain,
)

Packed = SavedTensor | UnswappedTensor


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """recorded: the pass that it is for. leave, release, come: the tensors, by the moment in which
    they begin to leave, give their bytes up, and begin to return. last_use: the moment of each
    activation's last access."""

    recorded: RecordedPass
    leave: defaultdict[int, list[int]]
    release: defaultdict[int, list[int]]
    come: defaultdict[int, list[int]]
    last_use: dict[int, int]


def pass_schedule(recorded: RecordedPass, schedule: SwapSchedule) -> PassSchedule:
    spans, away = schedule.spans, ~schedule.kept
    moments = enumerate(recorded.accesses, 1)
    return PassSchedule(
        recorded,
        by_moment(schedule.copied, spans.final, spans.tensor),
        by_moment(away, schedule.release, spans.tensor),
        by_moment(away, schedule.fetch, spans.tensor),
        {place: moment for moment, (kind, place, _) in moments if kind != "update"},
    )


class SwappedPass:
    """states: of the optimizers, which wait on the host between updates. smallest_bytes: smaller
    tensors stay. unswapped: storages that stay as well (those of parameters and buffers). schedule:
    what it follows; None: it is recorded.

    deviated: whether it has done anything else than its schedule. has_used: whether its backward
    pass has begun. has_updated: whether an optimizer has stepped.

    Views of one tensor are one activation: its storage, which is saved and comes back whole. Parts
    of a storage that are no views of one tensor (of `torch.unsafe_chunk`, as recurrent cells take
    it) count their changes apart, so each of them is an activation of its own.
    """

    def __init__(
        self,
        device: SwapDevice,
        states: SwappedStates,
        smallest_bytes: int,
        unswapped: set[int],
        schedule: PassSchedule | None,
    ) -> None:
        self.device = device
        self.states = states
        self.record: PassRecord | None = None
        self.deviated = False
        self.has_used = False
        self.has_updated = False
        self._schedule = schedule
        self._unswapped = unswapped
        self._smallest_bytes = smallest_bytes
        self._moment = 0
        self._activations: list[weakref.ref[SavedActivation]] = []
        self._saved_from: weakref.WeakValueDictionary[tuple[int, TensorForm], SavedActivation] = (
            weakref.WeakValueDictionary()
        )
        self._held: weakref.WeakSet[Packed] = weakref.WeakSet()
        self._ending: list[weakref.ref[SwappedBytes]] = []
        if schedule is None:
            begin = time.perf_counter()
            copied = self.states.put_away()
            self.record = PassRecord(device.memory, self.states.sizes())
            self.record.moved(copied, time.perf_counter() - begin)
        else:
            self._put_idle_states_away(schedule.recorded)
            self._move(schedule, None)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has happened in it."""
        return not (self._activations or self.is_under_way)

    @property
    def is_under_way(self) -> bool:
        """Whether its backward pass or an update has begun, so that it says what passes do."""
        return self.has_used or self.has_updated

    @property
    def is_held(self) -> bool:
        """Whether a backward pass may still come for what was saved."""
        return len(self._held) > 0

    @property
    def followed(self) -> PassSchedule | None:
        """The schedule, as long as the pass does what it says."""
        return None if self.deviated else self._schedule

    def pack(self, tensor: Tensor) -> Packed:
        """For `saved_tensors_hooks`: what autograd holds instead."""
        with torch.no_grad():
            saved: Packed
            if self._is_swappable(tensor):
                saved = SavedTensor(self._saved(tensor), self, form_of(tensor))
            else:
                saved = UnswappedTensor(tensor.detach(), self, tensor._version)
            self._held.add(saved)
            return saved

    def unpack(self, saved: Packed) -> Tensor:
        with torch.no_grad():
            self.has_used = True
            if isinstance(saved, UnswappedTensor):
                return saved.unpacked()
            return saved.form.within(self._use(saved.activation))

    def update(self, number: int) -> None:
        """An optimizer is about to step: its state is on the device then."""
        self.has_updated = True
        with torch.no_grad(), self._begin_moment(update_access(number, self.states.sizes())):
            if self.record is not None:
                self.record.timed(lambda: self.states.fetch(number))
            self.states.bring(number)

    def _saved(self, tensor: Tensor) -> SavedActivation:
        """The activation of the tensor that this one is, or is a view of."""
        storage = tensor.untyped_storage()
        key = storage._cdata, form_of(tensor if tensor._base is None else tensor._base)
        activation = self._saved_from.get(key)
        is_new = (
            activation is None
            or activation.watch() is not storage
            or activation.version != tensor._version
        )
        if activation is None or is_new:
            activation = SavedActivation(len(self._activations), tensor, self.device)
            self._saved_from[key] = activation
            self._activations.append(weakref.ref(activation))
        with self._begin_moment(("save", activation.position, activation.size_bytes), activation):
            if is_new and self.record is not None:
                self.record.watch(activation)
                self.record.timed(lambda: self._copy_out(activation))
            if is_new and self.followed is None:
                activation.leave()
                activation.release()
        return activation

    def _use(self, activation: SavedActivation) -> Tensor:
        """Its bytes on the device, for the backward that runs now."""
        place = activation.position
        with self._begin_moment(("use", place, activation.size_bytes), activation):
            if self.record is not None and activation.on_device is None:
                self.record.timed(lambda: self._copy_in(activation))
                self.record.watch(activation)
            held = activation.bring()
            if (schedule := self.followed) is not None:
                if place in schedule.leave[self._moment]:
                    activation.leave()
                is_last = self._moment == schedule.last_use[place]
                if is_last or place in schedule.release[self._moment]:
                    activation.release()  # the bytes go when the backward that uses them has run
            elif self.record is None:
                activation.release()
            else:
                # Only at the next moment: autograd holds what stays on a device until a little
                # after the backward that uses it (gradients of what was broadcast are reduced
                # before), and so does the record.
                self._ending.append(weakref.ref(activation))
        return held

    @contextmanager
    def _begin_moment(self, access: Access, used: SwappedBytes | None = None) -> Iterator[None]:
        """Another moment begins; within, its own tensors move. used: what it needs."""
        if (record := self.record) is not None:
            record.pause()
            self._end_uses(used)
            record.begin(access)
        if (schedule := self.followed) is not None:
            self._moment += 1
            accesses = schedule.recorded.accesses
            if self._moment > len(accesses) or accesses[self._moment - 1] != access:
                self._deviate()
            else:
                self._move(schedule, None if access[0] == "save" else used)
        yield
        if record is not None:
            record.resume()

    def _move(self, schedule: PassSchedule, used: SwappedBytes | None) -> None:
        """As the schedule says where this moment begins; but for what it uses."""
        for found in self._found(schedule, schedule.leave[self._moment]):
            if found is not used and found.on_device is not None:
                found.leave()
        for found in self._found(schedule, schedule.release[self._moment]):
            if found is not used:
                found.release()
        for found in self._found(schedule, schedule.come[self._moment]):
            if found.on_device is None:
                found.come()

    def _found(self, schedule: PassSchedule, tensors: list[int]) -> Iterator[SwappedBytes]:
        """But for activations that nobody holds any more."""
        for tensor in tensors:
            kind, place = schedule.recorded.tensors[tensor]
            found: SwappedBytes | None = None
            if kind == "activation":
                found = self._activations[place]()
            elif place < len(self.states.tensors):  # else the script has just loaded another state
                found = self.states.tensors[place]
            if found is not None:
                yield found

    def _deviate(self) -> None:
        """All that is away comes on demand from here on."""
        self.deviated = True
        for reference in self._activations:
            if (activation := reference()) is not None:
                activation.release()
        if not self.has_updated:
            self.states.put_away()

    def _copy_out(self, activation: SavedActivation) -> int:
        self.device.transfers.finish(activation.leave())
        return activation.size_bytes

    def _copy_in(self, activation: SavedActivation) -> int:
        self.device.transfers.finish(activation.come())
        return activation.size_bytes

    def _end_uses(self, used: SwappedBytes | None) -> None:
        """Of a recorded pass: what is used no more gives its bytes up."""
        ending, self._ending = self._ending, []
        for reference in ending:
            found = reference()
            if found is not None and found is not used:
                found.release()

    def _put_idle_states_away(self, recorded: RecordedPass) -> None:
        """Of optimizers that do not step in the pass."""
        updated = {number for kind, number, _ in recorded.accesses if kind == "update"}
        owners = enumerate(recorded.states)
        self.states.put_away([place for place, (owner, _) in owners if owner not in updated])

    def _is_swappable(self, tensor: Tensor) -> bool:
        """Whether it is large, its bytes tell what it is, and it is no parameter or buffer."""
        if type(tensor) is not Tensor or not is_plain(tensor):
            return False
        if tensor.is_conj() or tensor.is_neg():
            return False
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        if tensor.device != self.device.memory.device:
            return False
        storage = tensor.untyped_storage()
        return storage.nbytes() >= self._smallest_bytes and storage._cdata not in self._unswapped
