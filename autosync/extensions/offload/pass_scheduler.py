"""The schedule that passes follow: made of what one pass did, and again where more stays on the
device than it has counted on."""

import logging
from dataclasses import replace

from autosync.extensions.offload.idle_spans import Moments
from autosync.extensions.offload.pass_record import RecordedPass, States
from autosync.extensions.offload.scheduled_pass import PassSchedule, pass_schedule
from autosync.extensions.offload.scheduling import SwapSchedule, least_budget_bytes, make_schedule

log = logging.getLogger("autosync")

MOST_DEVIATIONS = 2
"""Passes in a row that do not do what the recorded one did, before one is recorded anew."""
NEGLIGIBLE = 0.01
"""Of what the fullest moment holds: so little more than where the recorded pass began is added to
all moments; what is more changes them, as the optimizer's first step does."""
HEADROOM = 0.001
"""Of what the fullest moment holds: a schedule counts on so much more, as far as the budget has
room for it. A list of losses, which grows by 4 bytes a pass, then takes no new schedule in each."""


class PassScheduler:
    """recorded: what the schedule is made of, with what has come to stay since. schedule: the last
    one. of_pass: what passes follow; None while one is recorded. deviations: passes in a row that
    did not follow it."""

    def __init__(self, budget_bytes: int) -> None:
        self.recorded: RecordedPass | None = None
        self.schedule: SwapSchedule | None = None
        self.of_pass: PassSchedule | None = None
        self.deviations = 0
        self._budget_bytes = budget_bytes
        self._headroom_bytes = 0

    def adopt(self, recorded: RecordedPass) -> None:
        """Raises BudgetTooSmall where the budget does not hold it."""
        least = least_budget_bytes(recorded.moments)
        headroom = max(0, min(int(HEADROOM * least), self._budget_bytes - least))
        schedule = make_schedule(
            recorded.spans,
            _fuller(recorded.moments, headroom),
            self._budget_bytes,
            recorded.link,
        )
        self.recorded, self.schedule = recorded, schedule
        self.of_pass = pass_schedule(recorded, schedule)
        self._headroom_bytes = headroom
        log.info(
            "swapping: %d of %d idle tensors stay, %.1f MB a pass travel, at most %.1f MB of "
            "the device are held.",
            int(schedule.kept.sum()),
            len(schedule.kept),
            schedule.moved_bytes / 1e6,
            schedule.peak_bytes / 1e6,
        )

    def note_pass(self, deviated: bool) -> None:
        """A pass has ended. deviated: it did not do what the recorded one did."""
        self.deviations = self.deviations + 1 if deviated else 0
        if self.deviations >= MOST_DEVIATIONS:
            self.of_pass = None

    def make_room(self, held_bytes: int, states: States, values: tuple[int, ...]) -> None:
        """What has come to the device since the recorded pass began stays there: gradients that add
        up over passes, a list of losses, the optimizer's state where that is not swapped.

        held_bytes: on the device where a pass begins, without swapped state. states, values: bytes
        of what is swapped of them. What is negligible and fits is counted on in every moment; else
        the next pass is recorded.
        """
        if self.of_pass is None or self.recorded is None:
            return
        recorded, grown = self.recorded, held_bytes - self.recorded.begin_bytes
        least = least_budget_bytes(recorded.moments)
        is_other = (states, values) != (recorded.states, recorded.values)
        if is_other or grown > min(NEGLIGIBLE * least, self._budget_bytes - least):
            self.of_pass = None
        elif grown > 0:
            self._grow(recorded, grown)

    def _grow(self, recorded: RecordedPass, grown_bytes: int) -> None:
        begin_bytes = recorded.begin_bytes + grown_bytes
        moments = _fuller(recorded.moments, grown_bytes)
        self.recorded = replace(recorded, moments=moments, begin_bytes=begin_bytes)
        self._headroom_bytes -= grown_bytes
        if self._headroom_bytes < 0:
            self.adopt(self.recorded)


def _fuller(moments: Moments, by_bytes: int) -> Moments:
    return replace(moments, base_bytes=moments.base_bytes + by_bytes)
