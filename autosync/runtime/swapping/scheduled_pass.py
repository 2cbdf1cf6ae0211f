"""A pass that follows a schedule, as far as it does what the recorded one did."""

import weakref
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from autosync.runtime.swapping.pass_record import Access, Kind, RecordedPass
from autosync.runtime.swapping.saved_activations import SavedActivation, SwapDevice
from autosync.runtime.swapping.swapped_pass import SwappedPass, release_all
from autosync.swap_schedule.idle_spans import I64
from autosync.swap_schedule.scheduling import SwapSchedule

Positions = defaultdict[int, list[int]]


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """accesses: that it is for. leave, release, come: the positions of activations, by the moment
    in which they begin to leave, give their bytes up, and begin to return. last_use: the moment of
    each position's last access."""

    accesses: tuple[Access, ...]
    leave: Positions
    release: Positions
    come: Positions
    last_use: dict[int, int]


def pass_schedule(recorded: RecordedPass, schedule: SwapSchedule) -> PassSchedule:
    spans, away = schedule.spans, np.flatnonzero(~schedule.kept)
    return PassSchedule(
        recorded.accesses,
        _by_moment(spans.final, spans.tensor, np.flatnonzero(schedule.copied)),
        _by_moment(schedule.release, spans.tensor, away),
        _by_moment(schedule.fetch, spans.tensor, away),
        {position: n + 1 for n, (_, position, _) in enumerate(recorded.accesses)},
    )


class ScheduledPass(SwappedPass):
    """Where it does anything else than the recorded pass, all goes on demand from there to its
    end: slower, and as exact.

    deviated: whether that has happened.
    """

    def __init__(
        self,
        device: SwapDevice,
        unswapped: set[int],
        smallest_bytes: int,
        schedule: PassSchedule,
    ) -> None:
        super().__init__(device, unswapped, smallest_bytes)
        self.deviated = False
        self._schedule = schedule
        self._moment = 0
        self._activations: list[weakref.ref[SavedActivation]] = []

    def _save(self, activation: SavedActivation, is_new: bool) -> None:
        if is_new:
            self._activations.append(weakref.ref(activation))
        self._follow("save", activation)
        if not self.deviated:
            self._begin_to_leave()
            self._release_due()
            self._begin_to_come()
        elif is_new:
            activation.leave()
            activation.release()

    def _use(self, activation: SavedActivation) -> Tensor:
        self._follow("use", activation)
        if not self.deviated:
            self._release_due(used=activation)
            self._begin_to_come()
        held = activation.bring()
        if not self.deviated:
            self._begin_to_leave()
        if self.deviated or self._is_given_up(activation.position):
            activation.release()
        return held

    def _is_given_up(self, position: int) -> bool:
        """Whether this is its last use, or the last before it leaves again: its bytes then go when
        the backward that uses them has run."""
        due = self._schedule.release[self._moment]
        return position in due or self._moment == self._schedule.last_use[position]

    def _follow(self, kind: Kind, activation: SavedActivation) -> None:
        """The next moment begins."""
        if self.deviated:
            return
        self._moment += 1
        accesses = self._schedule.accesses
        access = (kind, activation.position, activation.size_bytes)
        if self._moment > len(accesses) or accesses[self._moment - 1] != access:
            self.deviated = True
            release_all(self._activations)

    def _release_due(self, used: SavedActivation | None = None) -> None:
        for position in self._schedule.release[self._moment]:
            found = self._activations[position]()
            if found is not None and found is not used:
                found.release()

    def _begin_to_come(self) -> None:
        for position in self._schedule.come[self._moment]:
            if (found := self._activations[position]()) is not None and found.on_device is None:
                found.come()

    def _begin_to_leave(self) -> None:
        for position in self._schedule.leave[self._moment]:
            if (found := self._activations[position]()) is not None:
                found.leave()


def _by_moment(moments: I64, positions: I64, chosen: I64) -> Positions:
    found: Positions = defaultdict(list)
    for span in chosen.tolist():
        found[int(moments[span])].append(int(positions[span]))
    return found
