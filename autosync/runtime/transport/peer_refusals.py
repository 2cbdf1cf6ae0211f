"""What one rank cannot go on from in the middle of training ends it on every rank: the others read
why it stopped."""

import json
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from torch.distributed.distributed_c10d import Store

from autosync.errors import (
    AutosyncError,
    BudgetTooSmall,
    DeviceMemoryExceeded,
    InvalidInput,
    NotSupported,
)
from autosync.runtime.transport.failures import SynchronizationFailed

KEY = "refusal"

LOOK_SECONDS = 2.0
"""How long a store may take to answer; its own rank may be gone."""


KINDS = {
    kind.__name__: kind
    for kind in (
        BudgetTooSmall,
        DeviceMemoryExceeded,
        InvalidInput,
        NotSupported,
        SynchronizationFailed,
    )
}
"""Of errors that ranks tell each other."""


class Refusals:
    """store: with keys of one attached plan only."""

    def __init__(self, store: Store, rank: int):
        self._store = store
        self._rank = rank
        self._posted: list[str] | None = None

    def post(self, error: AutosyncError) -> None:
        """Before this rank ends its process groups, or stays away from what the others wait for.
        What a rank has posted before stays: that is the cause."""
        kind = type(error).__name__
        self._posted = [kind, error.message, error.thing, str(error.value), error.remedy]
        text = self._text()
        _within(LOOK_SECONDS, lambda: self._store.compare_set(KEY, "", text))

    def withdraw(self) -> None:
        """This rank goes on after all: its script has caught what it had posted."""
        if self._posted is None:
            return
        text, self._posted = self._text(), None
        _within(LOOK_SECONDS, lambda: self._store.compare_set(KEY, text, ""))

    def find(self) -> AutosyncError | None:
        """What another rank has posted; None where this rank has posted the same: where every rank
        refuses, their scripts may go on together, and take the plan off."""
        found: list[AutosyncError] = []

        def look() -> None:
            if not self._store.check([KEY]) or not (text := self._store.get(KEY)):
                return
            rank, *posted = json.loads(text)
            if posted != self._posted:
                kind, message, thing, value, remedy = posted
                words = f"rank {rank} stopped: {message}"
                kind_of_error = KINDS.get(kind, InvalidInput)
                found.append(kind_of_error(words, thing=thing, value=value, remedy=remedy))

        _within(LOOK_SECONDS, look)
        return found[0] if found else None

    def _text(self) -> str:
        return json.dumps([self._rank, *(self._posted or ())])


def told(error: Exception, where: str) -> AutosyncError:
    """What has ended a call of the script's, as other ranks are told it. Of the script's own code
    it may be any error; the others then miss what this rank was to send. where: the call."""
    if isinstance(error, AutosyncError):
        return error
    kind = type(error).__name__
    made = SynchronizationFailed(
        f"{where} ended with {kind}: {error}",
        thing=where,
        value=kind,
        remedy="See that rank's log, and start all ranks again from the last checkpoint.",
    )
    made.__cause__ = error
    return made


def _within(seconds: float, act: Callable[[], object]) -> None:
    """On a thread of its own, which nobody waits for any longer."""

    def attempt() -> None:
        with suppress(RuntimeError):  # what torch raises for a broken store
            act()

    thread = Thread(target=attempt, name="autosync-refusal", daemon=True)
    thread.start()
    thread.join(seconds)
