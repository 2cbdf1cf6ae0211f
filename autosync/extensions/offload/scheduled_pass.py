"""A pass that follows a schedule, as far as it does what the recorded one did."""

import weakref
from collections import defaultdict
from dataclasses import dataclass

from torch import Tensor

from autosync.extensions.offload.idle_spans import by_moment
from autosync.extensions.offload.pass_record import (
    END,
    FORWARD,
    Access,
    RecordedPass,
    activation_accesses,
    update_access,
    value_access,
)
from autosync.extensions.offload.saved_activations import SavedActivation
from autosync.extensions.offload.scheduling import SwapSchedule
from autosync.extensions.offload.swapped_bytes import SwappedBytes
from autosync.extensions.offload.swapped_pass import SwappedParts, SwappedPass, release_all
from autosync.extensions.offload.swapped_values import SwappedValue

TensorsByMoment = defaultdict[int, list[int]]


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """accesses, saved: of the recorded pass that it is for. states: how many tensors of state.
    leave, release, come: the tensors, by the moment in which they begin to leave, give their bytes
    up, and begin to return. last_use: the moment of each activation's last access. waiting: state
    that nobody updates in the pass."""

    accesses: tuple[Access, ...]
    saved: int
    states: int
    leave: TensorsByMoment
    release: TensorsByMoment
    come: TensorsByMoment
    last_use: dict[int, int]
    waiting: list[int]


def pass_schedule(recorded: RecordedPass, schedule: SwapSchedule) -> PassSchedule:
    spans, away = schedule.spans, ~schedule.kept
    updated = {number for kind, number, _ in recorded.accesses if kind == "update"}
    return PassSchedule(
        recorded.accesses,
        recorded.saved,
        len(recorded.states),
        by_moment(schedule.copied, spans.final, spans.tensor),
        by_moment(away, schedule.release, spans.tensor),
        by_moment(away, schedule.fetch, spans.tensor),
        {place: moment for moment, place, _ in activation_accesses(recorded.accesses)},
        [place for place, (number, _) in enumerate(recorded.states) if number not in updated],
    )


class ScheduledPass(SwappedPass):
    """Where it does anything else than the recorded pass, all goes on demand from there to its
    end: slower, and as exact.

    deviated: whether that has happened.
    """

    def __init__(self, parts: SwappedParts, schedule: PassSchedule) -> None:
        super().__init__(parts)
        self.deviated = False
        self._schedule = schedule
        self._moment = 0
        self._activations: list[weakref.ref[SavedActivation]] = []
        self._overdue: list[SwappedValue] = []
        self.states.put_away(schedule.waiting)
        self._begin_to_leave()
        self._release_due()
        self._begin_to_come()

    def _begin_forward(self) -> None:
        self._follow(FORWARD)
        if not self.deviated:
            self._begin_to_leave()
            self._release_due()
            self._begin_to_come()

    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        if is_new:
            self._activations.append(weakref.ref(activation))
        self._follow(("save", activation.position, activation.size_bytes))
        if not self.deviated:
            self._begin_to_leave()
            self._release_due()
            self._begin_to_come()
        elif is_new:
            activation.leave()
            activation.release()

    def _use(self, activation: SavedActivation) -> Tensor:
        self._follow(("use", activation.position, activation.size_bytes))
        if not self.deviated:
            self._release_due(used=activation)
            self._begin_to_come()
        held = activation.bring()
        if not self.deviated:
            self._begin_to_leave()
        if self.deviated or self._is_given_up(activation.position):
            activation.release()
        return held

    def _use_value(self, value: SwappedValue) -> None:
        self._follow(value_access(value))
        if value in self._overdue:
            self._overdue.remove(value)
        if not self.deviated:
            self._release_due()
            self._begin_to_come()
        elif value not in self._on_demand:
            self._on_demand.append(value)
        value.bring()

    def _keep_values(self) -> None:
        self._deviate()
        self.values.keep()

    def _bring_values(self) -> None:
        self._follow(END)
        if not self.deviated:
            self._release_due()
            self._begin_to_come()
        self._bring_all()

    def _bring_for_update(self, number: int) -> None:
        self._follow(update_access(number, self.states.sizes()))
        if not self.deviated:
            self._release_due()
            self._begin_to_come()
        self.states.bring(number)
        self._bring_all()

    def _bring_all(self) -> None:
        """And none leaves before the next forward pass."""
        for value in self.values.tensors:
            value.bring()
        self._overdue.clear()
        self._on_demand.clear()

    def _is_given_up(self, position: int) -> bool:
        """Whether this is its last use, or the last before it leaves again: its bytes then go when
        the backward that uses them has run."""
        due = self._schedule.release[self._moment]
        return position in due or self._moment == self._schedule.last_use[position]

    def _follow(self, access: Access) -> None:
        """The next moment begins."""
        if self.deviated:
            self._give_up_values()
            return
        self._moment += 1
        accesses = self._schedule.accesses
        if self._moment > len(accesses) or accesses[self._moment - 1] != access:
            self._deviate()

    def _deviate(self) -> None:
        """All that is away comes on demand from here on."""
        if self.deviated:
            return
        self.deviated = True
        release_all(self._activations)
        if not self.has_updated:
            self.states.put_away()
        if self.moves_values:
            self._put_values_away()

    def _release_due(self, used: SavedActivation | None = None) -> None:
        overdue, self._overdue = self._overdue, []
        due = [self._found(tensor) for tensor in self._schedule.release[self._moment]]
        for found in (*overdue, *due):
            if found is None or found is used:
                continue
            found.release()
            if isinstance(found, SwappedValue) and found.on_device is not None:
                self._overdue.append(found)  # somebody reads it, who did not in the recorded pass

    def _begin_to_come(self) -> None:
        for tensor in self._schedule.come[self._moment]:
            found = self._found(tensor)
            if found is not None and found.on_device is None:
                found.come()
            elif isinstance(found, SwappedValue) and found in self._overdue:
                self._overdue.remove(found)

    def _begin_to_leave(self) -> None:
        for tensor in self._schedule.leave[self._moment]:
            if (found := self._found(tensor)) is not None and found.on_device is not None:
                found.leave()

    def _found(self, tensor: int) -> SwappedBytes | None:
        """None of an activation that nobody holds any more."""
        saved, states = self._schedule.saved, self._schedule.states
        if tensor < saved:
            return self._activations[tensor]()
        if tensor >= saved + states:
            return self.values.tensors[tensor - saved - states]
        tensors = self.states.tensors  # fewer, where the script has just loaded another state
        return tensors[tensor - saved] if tensor - saved < len(tensors) else None
