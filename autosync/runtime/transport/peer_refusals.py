"""What one rank refuses in the middle of training ends it on every rank: the others read why it
stopped."""

import json
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from torch.distributed.distributed_c10d import Store

from autosync.errors import AutosyncError, InvalidInput, NotSupported
from autosync.runtime.transport.failures import SynchronizationFailed

KEY = "refusal"

LOOK_SECONDS = 2.0
"""How long a store may take to answer; its own rank may be gone."""


KINDS = {kind.__name__: kind for kind in (InvalidInput, NotSupported, SynchronizationFailed)}
"""Of errors that ranks tell each other."""


class Refusals:
    """store: with keys of one attached plan only."""

    def __init__(self, store: Store, rank: int):
        self._store = store
        self._rank = rank

    def post(self, error: AutosyncError) -> None:
        """Before this rank ends its process groups."""
        kind = type(error).__name__
        parts = [kind, error.message, error.thing, str(error.value), error.remedy]
        _within(LOOK_SECONDS, lambda: self._store.set(KEY, json.dumps([self._rank, *parts])))

    def find(self) -> AutosyncError | None:
        """What another rank has posted."""
        found: list[AutosyncError] = []

        def look() -> None:
            if self._store.check([KEY]):
                rank, kind, message, thing, value, remedy = json.loads(self._store.get(KEY))
                kind_of_error = KINDS.get(kind, InvalidInput)
                words = f"rank {rank} stopped: {message}"
                found.append(kind_of_error(words, thing=thing, value=value, remedy=remedy))

        _within(LOOK_SECONDS, look)
        return found[0] if found else None


def _within(seconds: float, act: Callable[[], object]) -> None:
    """On a thread of its own, which nobody waits for any longer."""

    def attempt() -> None:
        with suppress(RuntimeError):  # what torch raises for a broken store
            act()

    thread = Thread(target=attempt, name="autosync-refusal", daemon=True)
    thread.start()
    thread.join(seconds)
