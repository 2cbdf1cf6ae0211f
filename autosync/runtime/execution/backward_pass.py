"""One iteration from the script's forward pass to the end of its backward pass.

It opens with the first gradient of a backward pass. Its messages leave as buckets are full, and
where nothing runs into the next forward pass, it waits for the sums at the end.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd import Variable as Autograd

from autosync.errors import NotSupported
from autosync.runtime.execution.engine_parts import EngineParts
from autosync.runtime.execution.iteration import Phase
from autosync.runtime.execution.nested_backward import (
    inside_another,
    ready_twice,
    unknown_end,
    within_backward,
)
from autosync.runtime.layout.packing import pack_zeros
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.transport.failures import SynchronizationFailed


class BackwardPass:
    """synchronizing: False inside `no_sync`."""

    def __init__(self, parts: EngineParts):
        self.synchronizing = True
        self._parts = parts
        self._variables = parts.records.variables
        self._iteration = parts.iteration
        self._monitor = parts.monitor
        self._streams = parts.streams
        self._end_is_expected = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before

    def begin_forward(self) -> None:
        """Also where a backward pass ended with an exception, which never called back."""
        if within_backward():
            return
        self._monitor.check()
        self._monitor.go_on()
        self._parts.waits.check_turns()
        with self._monitor.refusing():
            self._parts.storage.check_forward()
        self._parts.waits.finish_buffers()
        self._end_is_expected = False
        if self._iteration.phase is Phase.BACKWARD:
            raise SynchronizationFailed(
                "the last backward pass ended with an error, so this rank's gradients are missing.",
                thing="backward",
                remedy="Start all ranks again from the last checkpoint.",
            )

    def before_buffers(self) -> None:
        """A module is about to read its buffers: the script may call it by itself."""
        if not within_backward():
            self._parts.waits.finish_buffers()

    def begin(self) -> None:
        """Open an iteration: called with the first gradient of a backward pass."""
        if self._iteration.phase is Phase.REDUCING and self._parts.gradients.any_left():
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self._parts.waits.check_turns()
        with self._monitor.refusing():
            self._check_not_nested()
        self._parts.waits.drain()
        with self._monitor.refusing():
            self._parts.storage.check_backward()
        if not self._parts.records.placed:
            self._compare_values(self._iteration.number + 1)
        with self._monitor.condition:
            if self._parts.turns is not None:
                self._parts.turns.begin()
            self._parts.gradients.scaler_looked = False
            self._iteration.rewind()
            self._parts.queues.rewind()
            self._iteration.phase = Phase.BACKWARD
        self.expect_end()

    def _compare_values(self, iteration: int) -> None:
        if (values := self._parts.values) is None:
            return
        with self._monitor.exchange("the comparison of parameter values"):
            error = values.difference(iteration, self._monitor.wait_for_work)
        if error is not None:
            self._monitor.stop(error)
            raise error

    def _check_not_nested(self) -> None:
        if not self._end_is_expected and inside_another():
            raise unknown_end()

    def expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs
        ask first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self._end_is_expected:
            self._end_is_expected = True
            Autograd._execution_engine.queue_callback(self.end)

    def packed(self, variable: VariableRecord) -> None:
        """The gradient of a variable is in its buffers. Its last bucket to be full leaves."""
        if variable.is_packed:
            with self._monitor.refusing():
                raise ready_twice(variable.name)
        variable.is_packed = True
        full = False
        self._streams.order_packing()
        for bucket in variable.buckets:
            if bucket.missing_gradients == 1:  # at 0 a landing thread may issue it
                bucket.packed_seconds = time.monotonic()
                bucket.packed_event = self._streams.record_event()
                full = True
            bucket.missing_gradients -= 1
        if full:
            with self._monitor.condition:
                self._parts.queues.issue_ready()

    def end(self) -> None:
        """Variables without a gradient count as zero; where nothing runs into the next forward
        pass, gradients are complete when `backward()` returns, as with torch's DDP."""
        self._end_is_expected = False
        if self._iteration.phase is not Phase.BACKWARD:
            return
        self._pack_late()
        with self._monitor.refusing(), self._monitor.exchange("the broadcast of module buffers"):
            self._parts.buffers.start(self._monitor.wait_for_work)
        if self._parts.records.placed:  # before, a rank may wait for its peers' backward passes
            self._compare_values(self._iteration.number)
        with self._monitor.condition:
            self._iteration.phase = Phase.REDUCING
        # What the host has landed a GPU may still be at work on: its readers wait for events.
        self._parts.gradients.make_gradients_pending(landed=self._streams.asynchronous)
        self._monitor.wait(lambda: self._iteration.blocking_variables == 0)
        self._streams.wait_last_events(v for v in self._variables if v.whole and not v.deferred)

    def _pack_late(self) -> None:
        """What this backward pass has not packed: gradients of passes before it, and zeros."""
        late = [variable for variable in self._variables if not variable.is_packed]
        absent = [variable for variable in late if variable.parameter.grad is None]
        unused = self._parts.unused
        with self._monitor.exchange("the count of unused variables"):
            unused.post(self._iteration.number, (variable.index for variable in absent))
        for variable in late:
            if variable.pack is not None and variable not in absent:  # under no_sync, before
                variable.pack(variable.parameter)
            else:
                pack_zeros(variable)
                self.packed(variable)
