"""Why a rank stopped while training ran, through a store that all ranks read; and errors as text.

Calls that every rank has to make, and reports before training begins, are in `agreement`.
"""

import json
from collections.abc import Callable, Sequence
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
from autosync.runtime.transport.base import SynchronizationFailed

STORE_SECONDS = 2.0
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
"""Of errors that ranks report to each other; others are raised there as InvalidInput."""

REFUSAL, CAUGHT, DROPPED = "refusal", "caught", "dropped"
"""Keys of what ranks post while training runs; see `Refusals`."""


class Refusals:
    """Why a rank stopped in the middle of training, for the ranks that wait for it.

    Three kinds of entries, one of each:

    - A refusal (`post` with final): this rank cannot go on. Every rank that waits looks for it once
      in LOOK_SECONDS, and ends with it.
    - An error of a call of the script (`post`): the script may catch it, spend any time on
      something else, and go on. So it ends no rank by itself: it names the cause where another rank
      can't go on without this one, because a message failed or its timeout has passed. A `step()`
      that succeeds withdraws it. It becomes a refusal when this rank leaves: its script ends or
      takes the plan off.
    - A dropped iteration (`drop`): this rank went on without the `step()` of an iteration, and will
      never send its new values. It ends those that wait for them, and no rank that dropped the
      iteration too.

    store: with keys of one attached plan only.
    """

    def __init__(self, store: Store, rank: int):
        self._store = store
        self._rank = rank
        self._mine = ""

    def post(self, error: AutosyncError, final: bool = False) -> None:
        """Before this rank ends its process groups, or stays away from what the others wait for.
        The first rank's entry of a kind stays: that is the cause. final: this rank cannot go on,
        whatever its script does."""
        text = self._text(error)
        if not final:
            self.withdraw()  # its last one, which no later call would find
            self._mine = text
        self._set_first(REFUSAL if final else CAUGHT, text)

    def withdraw(self) -> None:
        """This rank is in step with the others again: its script has caught what it had posted."""
        if text := self._mine:
            self._mine = ""
            _within(STORE_SECONDS, lambda: self._store.compare_set(CAUGHT, text, ""))

    def leave(self) -> None:
        """This rank takes no further part: an error that it has not withdrawn is final."""
        if text := self._mine:
            self._set_first(REFUSAL, text)

    def drop(self, iteration: int) -> None:
        """This rank goes on without the `step()` of an iteration: for the error that it has posted,
        if there is one."""
        text = json.dumps([iteration, *json.loads(self._mine or self._text(_left_out()))])
        _within(STORE_SECONDS, lambda: self._store.set(DROPPED, text))

    def find(self, stepped: int = -1) -> AutosyncError | None:
        """What ends this rank, posted by another one; None where this rank has posted the same:
        where every rank refuses, their scripts may go on together, and take the plan off. stepped:
        the last iteration that this rank has stepped."""
        return self._first(stepped, (REFUSAL, DROPPED))

    def cause(self, stepped: int = -1) -> AutosyncError | None:
        """As `find`, where this rank cannot go on: also an error that another one's script may have
        caught."""
        return self._first(stepped, (REFUSAL, DROPPED, CAUGHT))

    def _first(self, stepped: int, keys: Sequence[str]) -> AutosyncError | None:
        text = self._mine  # read once: the script's thread may withdraw it meanwhile
        mine = json.loads(text)[1:] if text else None
        found: list[AutosyncError] = []

        def look() -> None:
            for key in keys:
                text = self._store.get(key) if self._store.check([key]) else b""
                entry = json.loads(text) if text else None
                if entry and key == DROPPED:
                    entry = entry[1:] if entry[0] == stepped else None
                if entry and entry[0] != self._rank and entry[1:] != mine:
                    found.append(error_of(entry[1:], f"rank {entry[0]} stopped: "))
                    return

        _within(STORE_SECONDS, look)
        return found[0] if found else None

    def _text(self, error: AutosyncError) -> str:
        return json.dumps([self._rank, *error_fields(error)])

    def _set_first(self, key: str, text: str) -> None:
        _within(STORE_SECONDS, lambda: self._store.compare_set(key, "", text))


def _left_out() -> NotSupported:
    return NotSupported(
        "the gradients of a backward pass were dropped without optimizer.step(), and other ranks "
        "have stepped: under this plan they wait for this rank's new values.",
        thing="optimizer.step()",
        remedy="Step, or skip the step, on every rank alike.",
    )


def reported(error: BaseException, where: str) -> AutosyncError:
    """What has ended a call of the script's, as other ranks read it. Of the script's own code it
    may be any error; the others then miss what this rank was to send. where: the call."""
    if isinstance(error, AutosyncError):
        return error
    kind = type(error).__name__
    made = SynchronizationFailed(
        f"{where} ended with {kind}: {error}".rstrip(": "),
        thing=where,
        value=kind,
        remedy="See that rank's log, and start all ranks again from the last checkpoint.",
    )
    made.__cause__ = error
    return made


def error_fields(error: Exception) -> tuple[str, ...]:
    """Kind, message, thing, value, remedy."""
    if not isinstance(error, AutosyncError):
        kind = type(error).__name__
        thing, remedy = "autosync.distribute", "See that rank's log."
        error = InvalidInput(f"{kind}: {error}", thing=thing, value=kind, remedy=remedy)
    return type(error).__name__, error.message, error.thing, str(error.value), error.remedy


def error_of(posted: Sequence[str], said_by: str) -> AutosyncError:
    kind, message, thing, value, remedy = posted
    made = KINDS.get(kind, InvalidInput)
    return made(said_by + message, thing=thing, value=value, remedy=remedy)


def _within(seconds: float, act: Callable[[], object]) -> None:
    """On a thread of its own, which nobody waits for any longer."""

    def attempt() -> None:
        with suppress(RuntimeError):  # what torch raises for a broken store
            act()

    thread = Thread(target=attempt, name="autosync-refusal", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread while the interpreter ends
        attempt()
        return
    thread.join(seconds)
