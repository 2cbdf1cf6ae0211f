"""One iteration from the script's forward pass to the end of its backward pass.

It opens with the first gradient of a backward pass. Its messages leave as buckets are full, and
where nothing runs into the next forward pass, it waits for the sums at the end.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd import Variable as Autograd

from autosync.errors import NotSupported
from autosync.runtime.execution.engine_parts import EngineParts
from autosync.runtime.execution.iteration import Phase
from autosync.runtime.execution.nested_backward import (
    inside_another,
    ready_twice,
    unknown_end,
    with_graph,
    within_backward,
)
from autosync.runtime.layout.packing import pack_gradients, pack_zeros
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.runtime.transport.value_agreement import changed_within
from autosync.units import MIB


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
        self._share = torch.tensor(parts.records.share, dtype=torch.float64, device="cpu")
        self._batch_bytes = 16 * MIB if parts.streams.asynchronous else MIB
        self._waiting: list[VariableRecord] = []
        self._waiting_bytes = 0
        self._is_due = False
        self._versions: list[int] = []

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
        if self._parts.values is not None:
            self._parts.values.begin_forward()
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
            if torch.is_grad_enabled():
                raise with_graph()
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
        self._forget_waiting()
        self._versions = self._current_versions()
        self.expect_end()

    def _compare_values(self, iteration: int) -> None:
        if (values := self._parts.values) is None:
            return
        with self._monitor.exchange("the comparison of parameter values"):
            error = values.difference(iteration, self._monitor.wait_for_work)
        if error is None:
            return
        self._monitor.stop(error)
        raise error

    def _current_versions(self) -> list[int]:
        return [variable.parameter._version for variable in self._variables]

    def _check_not_nested(self) -> None:
        if not self._end_is_expected and inside_another():
            raise unknown_end()

    def expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs
        ask first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self._end_is_expected:
            self._end_is_expected = True
            Autograd._execution_engine.queue_callback(self.end)

    def arrived(self, variable: VariableRecord) -> None:
        """The gradient of a variable is complete: called by its hook, once in a backward pass.

        Several are packed together, with the last of a bucket or when they are many: until then
        they are in memory twice. What hooks behind ours do to this one is done when the next
        arrives.
        """
        if self._iteration.phase is not Phase.BACKWARD:
            self.begin()
        if variable.has_arrived:
            with self._monitor.refusing():
                raise ready_twice(variable.name)
        if self._is_due:
            self._pack_waiting()
        variable.has_arrived = True
        self._waiting.append(variable)
        self._waiting_bytes += variable.size_bytes
        full = False
        for bucket in variable.buckets:
            bucket.missing_arrivals -= 1
            full = full or not bucket.missing_arrivals
        if full or self._waiting_bytes >= self._batch_bytes:
            accumulator = variable.accumulator
            if accumulator is None or accumulator.is_last():
                self._pack_waiting()
            else:
                accumulator.make_last()
                self._is_due = True

    def _pack_waiting(self) -> None:
        waiting = self._waiting
        self._forget_waiting()
        try:
            pack_gradients(waiting, self._share)
        except NotSupported:
            with self._monitor.refusing():
                raise
        self._packed(waiting)

    def _forget_waiting(self) -> None:
        self._waiting, self._waiting_bytes, self._is_due = [], 0, False

    def _packed(self, variables: list[VariableRecord]) -> None:
        """These are in their buffers. Buckets that are full leave."""
        full = False
        self._streams.order_packing()
        for variable in variables:
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
        with torch.no_grad():
            self._pack_late()
        self._check_unchanged()
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
        late = [variable for variable in self._variables if not variable.has_arrived]
        absent = [variable for variable in late if variable.parameter.grad is None]
        unused = self._parts.unused
        with self._monitor.exchange("the count of unused variables"):
            unused.post(self._iteration.number, (variable.index for variable in absent))
        for variable in late:
            variable.has_arrived = True
        for variable in absent:
            pack_zeros(variable)
        self._waiting += [v for v in late if v not in absent]  # of passes under no_sync
        self._pack_waiting()
        self._packed(absent)

    def _check_unchanged(self) -> None:
        """An optimizer that steps in hooks has changed parameters by this rank's gradients."""
        if (versions := self._current_versions()) == self._versions:
            return
        pairs = zip(self._variables, versions, self._versions, strict=True)
        changed = next(variable for variable, now, before in pairs if now != before)
        with self._monitor.refusing():
            raise changed_within(changed.name)
