"""One lock for all state of an attached plan, and the failure that ends all waiting."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Condition, RLock
from typing import Any

from autosync.errors import AutosyncError, NotSupported
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.transport.base import lost_peer
from autosync.runtime.transport.refusals import Refusals, reported

LOOK_SECONDS = 1.0
"""How often a wait checks whether a peer has refused to continue: gloo does not report that."""


class Monitor:
    """abort: ends the process groups, so that every other rank notices a failure too.
    state_is_split: every rank holds only its own part of the optimizer's state. refusals: of all
    ranks. trace: notes waits. stepped: the last iteration that the script has stepped."""

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
        self.refusals = refusals
        self.trace = trace
        self.stepped = -1

    def wait(self, condition: Callable[[], bool]) -> None:
        """Raises SynchronizationFailed as soon as anything failed."""
        begun = time.monotonic()
        with self.condition:
            while not self.condition.wait_for(
                lambda: self.failure is not None or condition(), LOOK_SECONDS
            ):
                if (refusal := self.refusals.find(self.stepped)) is not None:
                    self._end(refusal)
            if self.trace is not None:
                self.trace.waited(begun)
        self.check()

    def wait_for_work(self, work: Any, stepped: int = -1) -> None:
        """Wait for one operation of a backend. Raises as soon as a peer has refused to continue.
        stepped: the iteration whose gradients `step()` or a GradScaler is about to apply."""
        while True:
            try:
                work.wait(timedelta(seconds=LOOK_SECONDS))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # for its own error, or none where it came just now
                    return
            refusal = self.refusals.find(max(stepped, self.stepped))
            if refusal is not None and not work.is_completed():
                raise self._end(refusal)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, what: str, thing: str, value: object = None) -> AutosyncError:
        """Returns the first failure: the error that a peer has posted, if there is one."""
        refusal = None if self.failure else self.refusals.cause(self.stepped)
        return self._end(refusal or lost_peer(what, thing, value, self._state_is_split))

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Use around a check that this rank makes alone: if it refuses, all ranks stop and raise
        the same error."""
        try:
            yield
        except NotSupported as error:
            if self.failure is None:  # else a peer was the first, and it is reported already
                self.stop(error)
            raise

    @contextmanager
    def reporting(self, where: str) -> Iterator[None]:
        """Use around a call of the script: any error in it is posted for the ranks that wait for
        this one. No engine stops because of it, since the script may catch the error and detach the
        plan, or continue (`Refusals`). where: the call."""
        try:
            yield
        except Exception as error:  # a closure of the script's own may raise anything
            if self.failure is None:  # else it is reported already, or a peer was the first
                self.refusals.post(reported(error, where))
            raise

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Use around updates: if the optimizer's own code raises, or a signal's handler does
        meanwhile, the new values never arrive. All ranks stop and raise the same error."""
        try:
            yield
        except BaseException as error:
            if self.failure is None:  # else a peer was the first, and it is reported already
                self.stop(reported(error, "the optimizer's update"))
            raise

    def stop(self, error: AutosyncError) -> AutosyncError:
        """End the plan on this rank and, with the same error, on all others. Returns the error that
        every later call raises: this one, unless the plan had ended before."""
        self.refusals.post(error, final=True)  # a thread may stop it while the script goes on
        return self._end(error)

    def _end(self, error: AutosyncError) -> AutosyncError:
        with self.condition:
            if self.failure is None:
                self.failure = error
            self.condition.notify_all()
        self._abort()
        return self.failure

    @contextmanager
    def exchange(self, what: str) -> Iterator[None]:
        """Use around a collective of the control group, beside the plan's messages: a missing peer
        is a failure there, too."""
        try:
            yield
        except RuntimeError as error:  # what torch raises for a broken process group or store
            raise self.fail(f"{what} failed: {error}", what) from error
