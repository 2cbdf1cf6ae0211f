"""Whether all ranks hold the same parameters: a rank that alone loads a checkpoint behind
`distribute` would train another model than the others, and no error would say so.

Ranks compare digests of their values where their first backward pass begins, and where one begins
behind a `load_state_dict` that changed values. Of the latter the other ranks need not know: a rank
that has loaded asks in the store and waits, and a thread of each other rank looks there once in
LOOK_SECONDS, and answers that its rank has begun this backward pass with the values that it had.
An iteration without a load costs nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from threading import Event, Thread
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import AutosyncError, InvalidInput, NotSupported

LOOK_SECONDS = 1.0
"""How often a rank looks whether another one asks."""

FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.001, 0.1
"""Between two looks of a rank that waits for the others."""

KEPT = "kept"
"""The answer of a rank that has loaded nothing."""

ASKED = "asked"
"""Which backward pass a rank asked about last. The key stays: who asks a store for a key that has
gone waits, and meanwhile nothing else of its process is answered."""

WITHIN = "within backward: "
"""Before the name of a parameter that a hook has changed there."""

THREAD = "autosync-values"

WIDTH = 1024
"""Words of a row: a digest weighs the sums of rows and of columns by their places."""


class ValueAgreement:
    """parameters: those that every rank holds, by the name that they have on every rank. store:
    with keys of one attached plan only. patience_seconds: how long a rank waits for the others."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        store: Store,
        rank: int,
        world: int,
        patience_seconds: float,
    ):
        self._parameters = parameters
        self._store = PrefixStore("values", store)
        self._rank = rank
        self._world = world
        self._patience_seconds = patience_seconds
        self._before_load: list[int] | None = None
        self._at_forward: list[int] | None = None
        self._changed = ""
        self._passed = -1
        self._answered = -1
        self._closed = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Answer other ranks from now on, until `close`."""
        if self._world > 1:
            self._thread = Thread(target=self._answer_all, name=THREAD, daemon=True)
            self._thread.start()

    def begin_forward(self) -> None:
        """Before the first backward pass, what hooks inside of it may change is noted."""
        if self._passed < 0:
            self._at_forward = digests(self._parameters.values())

    def before_load(self) -> None:
        """A `load_state_dict` of the model or of a module is about to begin; nothing is in
        flight."""
        self._at_forward = None
        if self._before_load is None and self._passed >= 0:
            self._before_load = digests(self._parameters.values())

    def before_step(self) -> None:
        """What was loaded has changed values, or not: the optimizer is about to change them."""
        if self._before_load is not None:
            self._note_load(digests(self._parameters.values()))

    def _note_load(self, now: list[int]) -> None:
        before, self._before_load = self._before_load, None
        pairs = zip(self._parameters, before or now, now, strict=True)
        self._changed = self._changed or next((n for n, old, new in pairs if old != new), "")

    def _changed_within(self, now: list[int]) -> str:
        """What hooks have changed inside of the first backward pass, before values are compared."""
        pairs = zip(self._parameters, self._at_forward or now, now, strict=True)
        return next((WITHIN + name for name, before, after in pairs if before != after), "")

    def difference(self, iteration: int, wait: Callable[[Any], None]) -> AutosyncError | None:
        """At the beginning of a backward pass, before this rank sends anything; where ranks divide
        the model, at its end. What this rank ends with, and the others with it; None where values
        are alike. wait: for an operation under way.

        Raises:
            RuntimeError: a rank does not come.
        """
        error = None
        if iteration == 0 or self._before_load is not None or self._changed:
            now = digests(self._parameters.values())
            self._note_load(now)
            if self._world > 1 and (iteration == 0 or self._changed):
                error = self._compare(iteration, now, wait)
            self._changed = ""
        self._passed = iteration
        return error

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(LOOK_SECONDS)

    def _compare(
        self, iteration: int, mine: list[int], wait: Callable[[Any], None]
    ) -> AutosyncError | None:
        digest = sha256(repr(mine).encode()).hexdigest()
        self._answered = iteration
        cause = self._changed or (self._changed_within(mine) if iteration == 0 else "")
        said = self._exchange(f"{iteration}", f"{digest} {cause}", wait)
        if KEPT in said:
            kept = said.index(KEPT)
            loaded = [rank for rank, word in enumerate(said) if word != KEPT]
            return _loaded_alone(loaded, kept, said[loaded[0]].partition(" ")[2])
        words = [word.partition(" ")[0] for word in said]
        if len(set(words)) == 1:
            return None
        causes = [word.partition(" ")[2] for word in said]
        if within := next((cause for cause in causes if cause.startswith(WITHIN)), ""):
            return changed_within(within.removeprefix(WITHIN))
        each = self._exchange(f"{iteration}/each", " ".join(map(str, mine)), wait)
        return _other_values(list(self._parameters), words, [text.split() for text in each])

    def _exchange(self, key: str, word: str, wait: Callable[[Any], None]) -> list[str]:
        """What every rank reports, by rank."""
        if self._passed >= 0:
            self._store.set(ASKED, key.partition("/")[0])
        self._store.set(f"{key}/{self._rank}", word)
        keys = [f"{key}/{rank}" for rank in range(self._world)]
        wait(_Arrival(self._store, keys, self._patience_seconds))
        return [word.decode() for word in self._store.multi_get(keys)]

    def _answer_all(self) -> None:
        with suppress(RuntimeError):  # the store has gone with its rank
            while not self._closed.wait(LOOK_SECONDS):
                self._answer()

    def _answer(self) -> None:
        """This rank is past where another one asks, and has not asked itself."""
        if not self._store.check([ASKED]):
            return
        iteration = int(self._store.get(ASKED))
        if self._passed >= iteration > self._answered:
            self._answered = iteration
            self._store.set(f"{iteration}/{self._rank}", KEPT)


class _Arrival:
    """Of all keys in a store, as an operation that is waited for."""

    def __init__(self, store: Store, keys: list[str], patience_seconds: float):
        self._store = store
        self._keys = keys
        self._until = time.monotonic() + patience_seconds

    def is_completed(self) -> bool:
        return time.monotonic() > self._until or self._store.check(self._keys)

    def wait(self, timeout: timedelta | None = None) -> None:
        """It looks again and again: a wait of the store's own would keep other threads of this
        process from the store, and log each timeout."""
        seconds = 0.0 if timeout is None else timeout.total_seconds()
        until, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
        while time.monotonic() < until:
            if self._store.check(self._keys):
                return
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
        missing = [key for key in self._keys if not self._store.check([key])]
        if missing:
            ranks = [key.rpartition("/")[2] for key in missing]
            raise RuntimeError(f"ranks {', '.join(ranks)} have not come to compare their values")


def digests(tensors: Any) -> list[int]:
    """One exact checksum a tensor, of its bits and their places: formed on its device, which is
    waited for once."""
    found = [_digest(tensor) for tensor in tensors]
    devices = dict.fromkeys(word.device for word in found)
    together = {d: torch.stack([w for w in found if w.device == d]).tolist() for d in devices}
    return [together[word.device].pop(0) for word in found]


@torch.no_grad()
def _digest(tensor: Tensor) -> Tensor:
    """i64[]; integers wrap around, so the order of additions does not matter."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = len(flat) // 8 * 8
    words, tail = flat[:whole], flat[whole:]
    if words.storage_offset() % 8:
        words = words.clone()
    words = words.view(torch.int64)
    rows = len(words) // WIDTH
    table, rest = words[: rows * WIDTH].view(rows, WIDTH), words[rows * WIDTH :]
    parts = (table.sum(1), table.sum(0), rest, tail.long())
    return torch.stack([_weighed(part, place) for place, part in enumerate(parts)]).sum()


def _weighed(words: Tensor, place: int) -> Tensor:
    """Each by an odd number of its own."""
    odd = torch.arange(len(words), device=words.device) * 2 + 1
    return (words * (odd * 0x9E3779B97F4A7C1 + 2 * place)).sum()


def _loaded_alone(loaded: list[int], kept: int, name: str) -> InvalidInput:
    ranks = f"rank {loaded[0]} has" if len(loaded) == 1 else f"ranks {loaded} have"
    return InvalidInput(
        f"{ranks} loaded other values behind autosync.distribute, and rank {kept} has not: "
        f"{name!r} differs.",
        thing=f"model.{name}",
        value=loaded,
        remedy="Load a checkpoint on every rank, or before autosync.distribute, which gives every "
        "rank the values of rank 0.",
    )


def changed_within(variable: str) -> NotSupported:
    return NotSupported(
        f"variable {variable!r} was changed inside of backward(), as an optimizer that steps in a "
        "hook does: its gradient has not been averaged over the ranks yet.",
        thing=f"variable {variable}",
        remedy="Call optimizer.step() behind backward().",
    )


def _other_values(names: list[str], words: list[str], each: list[list[str]]) -> InvalidInput:
    """words: of all a rank's values. each: of its single parameters."""
    usual = Counter(words).most_common(1)[0][0]
    odd = next(rank for rank, word in enumerate(words) if word != usual)
    other = words.index(usual)
    pairs = zip(names, each[odd], each[other], strict=True)
    name = next((name for name, one, another in pairs if one != another), "")
    return InvalidInput(
        f"the ranks' values differ: {name!r} is another on rank {odd} than on rank {other}.",
        thing=f"model.{name}",
        value=odd,
        remedy="Load the same checkpoint on every rank, or before autosync.distribute, which "
        "gives every rank the values of rank 0.",
    )
