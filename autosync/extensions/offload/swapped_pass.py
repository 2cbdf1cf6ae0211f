"""A forward and a backward pass whose saved tensors may be elsewhere.

Without a schedule everything leaves when it is saved and comes back when it is used: the least
memory, and the slowest. The first pass of a job runs so and is recorded. A pass with a schedule
follows it as long as it does what the recorded pass did; from there to its end everything goes on
demand: slower, and as exact.

Where the optimizers' state or values are swapped, updates belong to the pass, which then reaches
from one update to the next.
"""

import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Variable as Autograd

from autosync.extensions.offload.device import SwapDevice
from autosync.extensions.offload.optimizer_states import SwappedStates
from autosync.extensions.offload.parameter_values import SavedValue, SwappedValue, SwappedValues
from autosync.extensions.offload.pass_record import (
    END,
    FORWARD,
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
    UnswappedTensor,
    form_of,
    is_plain,
    ordinary_tensors,
)
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
        {place: moment for moment, (kind, place, _) in moments if kind in ("save", "use")},
    )


class SwappedPass:
    """schedule: what it follows; None: it is recorded. deviated: whether it has done anything else
    than its schedule. has_used: whether its backward pass has begun. has_updated: whether an
    optimizer has stepped. moves_values: from the begin of a forward pass to the end of the backward
    pass.

    Tensors that lie in one storage are one activation, which is saved and comes back whole.
    """

    def __init__(self, parts: SwappedParts, schedule: PassSchedule | None) -> None:
        self.device = parts.device
        self.states = parts.states
        self.values = parts.values
        self.record: PassRecord | None = None
        self.deviated = False
        self.has_used = False
        self.has_updated = False
        self.moves_values = False
        self._schedule = schedule
        self._unswapped = parts.unswapped
        self._smallest_bytes = parts.smallest_bytes
        self._moment = 0
        self._activations: list[weakref.ref[SavedActivation]] = []
        self._by_storage: weakref.WeakValueDictionary[int, SavedActivation] = (
            weakref.WeakValueDictionary()
        )
        self._held: weakref.WeakSet[Packed] = weakref.WeakSet()
        self._end_is_expected = False
        self._ending: list[weakref.ref[SwappedBytes]] = []
        if schedule is None:
            begin = time.perf_counter()
            copied = self.states.put_away()
            self.record = PassRecord(self.device.memory, self.states.sizes(), self.values.sizes())
            self.record.moved(copied, time.perf_counter() - begin)
        else:
            self._put_idle_states_away(schedule.recorded)
            self._move(schedule, None)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has happened in it."""
        return not (self._activations or self.is_under_way or self.moves_values)

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

    def begin_forward(self) -> None:
        """The model's own forward begins, and values may leave from here on."""
        if self.has_updated or not self.values.tensors:
            return
        self._end_is_expected = False
        if not self.moves_values:
            self.moves_values = True
            for value in self.values.tensors:
                value.begin()
        with torch.no_grad(), self._begin_moment(FORWARD):
            if self.followed is None:
                self._put_values_away()

    def read(self, values: Iterable[SwappedValue]) -> None:
        """They are about to be read: they are on the device from here on."""
        if not self.moves_values:
            return
        with ordinary_tensors():
            for value in values:
                with self._begin_moment(("value", value.position, value.size_bytes), value):
                    self._bring(value)
                    if self.followed is None:
                        self._ending.append(weakref.ref(value))
                    value.bring()

    def stay(self) -> None:
        """All values are on the device from here to the end of the pass."""
        if self.moves_values:
            with ordinary_tensors():
                if self.record is None:
                    self._deviate()
                    self.values.keep()
                else:
                    self.record.timed(self.values.keep)
                    self.record.values_are_home()

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
        self.has_updated = True
        self.moves_values = False
        with torch.no_grad(), self._begin_moment(update_access(number, self.states.sizes())):
            self._bring_values()
            if self.record is not None:
                self.record.timed(lambda: self.states.fetch(number))
            self.states.bring(number)
        self.values.unpin()

    def end_backward(self) -> None:
        """All values are on the device until the next forward pass begins."""
        if self.moves_values:
            self.moves_values = False
            with torch.no_grad(), self._begin_moment(END):
                self._bring_values()
            self.values.unpin()

    def _expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. (Of the inner one of a
        reentrant checkpoint, if that comes first: values are then back sooner.)"""
        if self.moves_values and not self._end_is_expected and within_backward():
            self._end_is_expected = True
            Autograd._execution_engine.queue_callback(self.end_backward)

    def _packed(self, tensor: Tensor) -> Packed:
        if self._is_ordinary(tensor):
            if (value := self.values.around(tensor)) is not None:
                return SavedValue(value, self, form_of(tensor), value.parameter._version)
            if self._is_swappable(tensor):
                return SavedTensor(self._saved(tensor), self, form_of(tensor))
        return UnswappedTensor(tensor.detach(), self, tensor._version)

    def _saved(self, tensor: Tensor) -> SavedActivation:
        """The activation whose storage the tensor lies in."""
        storage = tensor.untyped_storage()
        activation = self._by_storage.get(storage._cdata)
        is_new = (
            activation is None
            or activation.watch() is not storage
            or activation.version != tensor._version
        )
        if activation is None or is_new:
            activation = SavedActivation(len(self._activations), tensor, self.device)
            self._by_storage[storage._cdata] = activation
            self._activations.append(weakref.ref(activation))
        with self._begin_moment(("save", activation.position, activation.size_bytes), activation):
            if is_new and self.record is not None:
                self.record.watch(activation)
                self.record.timed(lambda: self._copy_out([activation]))
            if is_new and self.followed is None:
                activation.leave()
                activation.release()
        return activation

    def _use(self, activation: SavedActivation) -> Tensor:
        """Its bytes on the device, for the backward that runs now."""
        place = activation.position
        with self._begin_moment(("use", place, activation.size_bytes), activation):
            self._bring(activation)
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
                # before), and the record tells so.
                self._ending.append(weakref.ref(activation))
        return held

    def _bring(self, tensor: SavedActivation | SwappedValue) -> None:
        """While a pass is recorded: timed."""
        if self.record is None or tensor.on_device is not None:
            return

        def copy() -> int:
            self.device.transfers.finish(tensor.come())
            return tensor.size_bytes

        self.record.timed(copy)
        if isinstance(tensor, SavedActivation):
            self.record.watch(tensor)

    def _bring_values(self) -> None:
        """And none leaves before the next forward pass."""
        if self.record is not None:
            self.record.timed(self.values.come_home)
        for value in self.values.tensors:
            value.bring()
        self._ending.clear()

    @contextmanager
    def _begin_moment(self, access: Access, used: SwappedBytes | None = None) -> Iterator[None]:
        """Another moment begins; within, its own tensors move. used: what it needs."""
        if (record := self.record) is not None:
            record.pause()
            self._end_uses(used, record.moment + 1)
            record.begin(access)
        else:
            self._end_uses(used)
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
        for found in self._found(schedule, schedule.leave[self._moment], used):
            if found.on_device is not None:
                found.leave()
        for found in self._found(schedule, schedule.release[self._moment], used):
            found.release()
            if isinstance(found, SwappedValue) and found.on_device is not None:
                # somebody reads it, who did not in the recorded pass
                self._ending.append(weakref.ref(found))
        for found in self._found(schedule, schedule.come[self._moment], None):
            if found.on_device is None:
                found.come()
            self._ending = [each for each in self._ending if each() is not found]

    def _found(
        self, schedule: PassSchedule, tensors: list[int], used: SwappedBytes | None
    ) -> Iterator[SwappedBytes]:
        """But for activations that nobody holds any more, and what is used."""
        for tensor in tensors:
            kind, place = schedule.recorded.tensors[tensor]
            found: SwappedBytes | None = None
            if kind == "activation":
                found = self._activations[place]()
            elif kind == "value":
                found = self.values.tensors[place]
            elif place < len(self.states.tensors):  # else the script has just loaded another state
                found = self.states.tensors[place]
            if found is not None and found is not used:
                yield found

    def _deviate(self) -> None:
        """All that is away comes on demand from here on."""
        if self.deviated:
            return
        self.deviated = True
        for reference in self._activations:
            if (activation := reference()) is not None:
                activation.release()
        if not self.has_updated:
            self.states.put_away()
        if self.moves_values:
            self._put_values_away()

    def _put_values_away(self) -> None:
        """From here on they come on demand."""
        leaving = [each for each in self.values.tensors if each.on_device is not None]
        if self.record is None:
            for value in leaving:
                value.leave()
        else:
            self.record.timed(lambda: self._copy_out(leaving))
        self._ending = [weakref.ref(value) for value in leaving]
        self._end_uses(None, 0 if self.record is None else self.record.moment)

    def _copy_out(self, leaving: Iterable[SavedActivation | SwappedValue]) -> int:
        """Returns the bytes of those that the host did not have."""
        new = [each for each in leaving if not each.on_host]
        for transfer in [each.leave() for each in new]:
            self.device.transfers.finish(transfer)
        return sum(each.size_bytes for each in new)

    def _end_uses(self, used: SwappedBytes | None, moment: int = 0) -> None:
        """What is used no more gives its bytes up; what still is does so at a later moment.
        moment: the first without them, for the record."""
        ending, self._ending = self._ending, []
        for reference in ending:
            found = reference()
            if found is None or found is used:
                continue
            found.release()
            if isinstance(found, SwappedValue):
                if found.on_device is not None:
                    self._ending.append(reference)
                elif self.record is not None:
                    self.record.idle(("value", found.position), found.size_bytes, moment)

    def _put_idle_states_away(self, recorded: RecordedPass) -> None:
        """Of optimizers that do not step in the pass."""
        updated = {number for kind, number, _ in recorded.accesses if kind == "update"}
        owners = enumerate(recorded.states)
        self.states.put_away([place for place, (owner, _) in owners if owner not in updated])

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
