"""One lock for all state of an attached plan, and the failure that ends all waiting."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Condition, RLock
from typing import Any

from autosync.errors import AutosyncError, NotSupported
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.transport.agreement import Refusals, reported
from autosync.runtime.transport.failures import lost_peer

LOOK_SECONDS = 1.0
"""How often a wait looks whether a peer has refused to go on: gloo does not say so."""


class Monitor:
    """abort: ends the process groups, so that every other rank notices a failure too.
    state_is_split: every rank holds only its own part of the optimizer's state. refusals: of all
    ranks. trace: notes waits."""

    def __init__(
        self,
        abort: Callable[[], None],
        state_is_split: bool,
        refusals: Refusals,
        trace: ExecutionTrace | None = None,
    ):
        self.condition = Condition(RLock())
        self.failure: AutosyncError | None = None
        self._abort = abort
        self._state_is_split = state_is_split
        self._refusals = refusals
        self._trace = trace

    def wait(self, condition: Callable[[], bool]) -> None:
        """Raises SynchronizationFailed as soon as anything failed."""
        begun = time.monotonic()
        with self.condition:
            while not self.condition.wait_for(
                lambda: self.failure is not None or condition(), LOOK_SECONDS
            ):
                if (refusal := self._refusals.find()) is not None:
                    self._end(refusal)
            if self._trace is not None:
                self._trace.waited(begun)
        self.check()

    def wait_for_work(self, work: Any) -> None:
        """For one operation of a backend. Raises as soon as a peer has refused to go on."""
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_SECONDS))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # for its own error, or none where it came just now
                    return
            if (refusal := self._refusals.find()) is not None:
                raise self._end(refusal)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, what: str, thing: str, value: object = None) -> AutosyncError:
        """Returns the first failure. Where a peer has refused to go on, that is what failed."""
        refusal = None if self.failure else self._refusals.find()
        return self._end(refusal or lost_peer(what, thing, value, self._state_is_split))

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Around a check of this rank alone: where it refuses, all ranks stop and say why."""
        try:
            yield
        except NotSupported as error:
            if self.failure is None:  # else a peer was the first, and it is told already
                self.stop(error)
            raise

    @contextmanager
    def telling(self, where: str) -> Iterator[None]:
        """Around a call of the script's: whatever ends it, the others read where they wait for this
        rank. Nothing ends here, for the script may take the plan off, or go on. where: the call."""
        self.go_on()
        try:
            yield
        except Exception as error:  # a closure of the script's own may raise anything
            if self.failure is None:  # else it is told already, or a peer was the first
                self._refusals.post(reported(error, where))
            raise

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around updates: the optimizer's own code may raise anything, and the new values would be
        waited for without end. All ranks stop and say why."""
        try:
            yield
        except AutosyncError:
            raise
        except Exception as error:
            self.stop(reported(error, "the optimizer's update"))
            raise

    def go_on(self) -> None:
        """The script goes on, whatever it was told before."""
        self._refusals.withdraw()

    def stop(self, error: AutosyncError) -> None:
        """This rank goes no further: the others stop, too, and say why."""
        self._refusals.post(error)
        self._end(error)

    def _end(self, error: AutosyncError) -> AutosyncError:
        with self.condition:
            if self.failure is None:
                self.failure = error
            self.condition.notify_all()
        self._abort()
        return self.failure

    @contextmanager
    def exchange(self, what: str) -> Iterator[None]:
        """Around a collective of the control group, beside the plan's messages: a peer that is
        absent from it is a failure alike."""
        try:
            yield
        except RuntimeError as error:  # what torch raises for a broken process group or store
            raise self.fail(f"{what} failed: {error}", what) from error
