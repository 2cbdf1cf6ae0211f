"""Executes a plan in the iterations of a training script.

An iteration opens with the first gradient of a backward pass. Its messages leave when buckets are
full. If nothing continues during the next forward pass, the end of backward waits for the sums.
`step()` closes the iteration for the script; messages that may continue during the next forward
pass end after it. One lock, the monitor's, guards all state; the work itself (waiting, summing,
updating) happens outside of it.

On a GPU this thread only submits work. Device events order it: completions and updates have a
stream of their own, which waits for the moment of `step()`. The script's stream waits for
the last event of the variables that it reads next.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.completion import Completion, Iteration, Phase
from autosync.runtime.execution.message_queue import MessageQueues, Queued
from autosync.runtime.execution.model_checks import (
    ParameterStorage,
    inside_another,
    ready_twice,
    unknown_end,
    with_graph,
    within_backward,
)
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.optimizer_step import OptimizerStep
from autosync.runtime.execution.pending import PendingParameters
from autosync.runtime.execution.script_gradients import ScriptGradients
from autosync.runtime.execution.script_state import ScriptState
from autosync.runtime.layout.packing import pack_gradients, pack_zeros
from autosync.runtime.layout.records import Records, VariableRecord, issue_order, place_of_buffers
from autosync.runtime.transport.base import Wait, gradients_missing
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.value_agreement import ValueAgreement, changed_within
from autosync.runtime.updates.optimizer_state import ShardedOptimizerState
from autosync.runtime.updates.unused_variables import UnusedVariables
from autosync.units import MIB

EXIT_SECONDS = 30.0
"""How long messages may take after the script has ended. One that outlives the interpreter would
abort the process: its thread ends inside the backend's own code."""


class Engine:
    """One attached plan; hooks and frameworks call it.

    optimizer: the script's, or several joined. control: a process group of all ranks for small
    exchanges. values: compares the ranks' values, if they must begin equal. sum_over_ranks:
    see `small_sum`. patience_seconds: see `MessageQueues`.
    synchronizing: False inside `no_sync`. is_blind: whether the forward pass does not say what it
    is about to read, so that `step()` waits for everything.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        records: Records,
        state: ShardedOptimizerState,
        *,
        control: Any,
        streams: Streams,
        monitor: Monitor,
        storage: ParameterStorage,
        buffers: BufferBroadcast,
        values: ValueAgreement | None,
        unused: UnusedVariables,
        sum_over_ranks: Callable[[Tensor, Wait], None],
        max_grad_norm: float | None,
        patience_seconds: float,
    ):
        self.optimizer = optimizer
        self.plan = plan
        self.records = records
        self.variables = records.variables
        self.buckets = records.buckets
        self.messages = records.messages
        self.state = state
        self.control = control
        self.streams = streams
        self.monitor = monitor
        self.storage = storage
        self.values = values
        self.synchronizing = True
        self.is_blind: Callable[[], bool] = lambda: False
        self.iteration = Iteration(records)
        self.completion = Completion(self.iteration, optimizer, unused, monitor, streams)
        self.queues = MessageQueues(self.completion, monitor, streams, patience_seconds)
        self.gradients = ScriptGradients(self, sum_over_ranks, max_grad_norm)
        self.optimizer_step = OptimizerStep(self)
        self.script_state = ScriptState(self)
        self.pending_parameters = PendingParameters(self.variables, self.wait_for)
        self._buffers = buffers
        self._unused = unused
        self._share = torch.tensor(records.share, dtype=torch.float64, device="cpu")
        self._expected_end: Callable[[], object] = lambda: None
        self._batch_bytes = 16 * MIB if streams.asynchronous else MIB
        self._waiting: list[VariableRecord] = []
        self._waiting_bytes = 0
        self._is_due = False
        self._versions: list[int] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Engine":
        """A copied model keeps its hooks; they have no effect on the copy."""
        return self

    def start(self) -> None:
        """Start the threads of every queue of messages."""
        ordered: list[Queued] = [self.messages[index] for index in issue_order(self.plan)]
        if (buffers := self._buffers.in_order()) is not None:
            ordered.insert(place_of_buffers(self.plan), buffers)
        self.queues.start(ordered)
        if self.values is not None:
            self.values.start()

    def close(self, seconds: float | None = None) -> None:
        """Stop every thread, after `flush` unless it failed. seconds: see `MessageQueues.close`."""
        self.queues.close(seconds)
        self._buffers.close(seconds)
        if self.values is not None:
            self.values.close()

    def leave(self) -> None:
        """This rank takes no further part. Others read why, if they still miss its gradients."""
        if self.iteration.phase is Phase.BACKWARD and self.monitor.failure is None:
            self.monitor.refusals.post(gradients_missing())
        self.monitor.refusals.leave()

    def finish(self) -> None:
        """At the end of the process, wait for the last `step()`'s messages, if nothing failed."""
        monitor = self.monitor

        def ended() -> bool:
            done = self.iteration.outdated_variables == 0
            return monitor.failure is not None or self.iteration.phase is not Phase.STEPPED or done

        with monitor.condition:
            monitor.condition.wait_for(ended, timeout=EXIT_SECONDS)
        if monitor.failure is None:
            self.streams.synchronize()
            if self.streams.asynchronous and self.iteration.phase is Phase.STEPPED:
                # A rank's own end of a message is not its peers': to end a group aborts theirs.
                with suppress(RuntimeError):
                    self.control.barrier(dist.BarrierOptions()).wait(timedelta(0, EXIT_SECONDS))

    # --- waiting for what is in flight

    def wait_for(self, variables: Sequence[VariableRecord]) -> None:
        """Before a forward that reads these variables."""
        if self.iteration.phase is not Phase.STEPPED:
            return
        if self.iteration.outdated_variables or self.monitor.failure:
            self.monitor.wait(lambda: all(variable.missing_values == 0 for variable in variables))
        self.streams.wait_last_events(variables)
        self.pending_parameters.release(variables)

    def flush(self) -> None:
        """Wait for every message and update in flight, module buffers included."""
        self.monitor.check()
        self.optimizer_step.check_finished()
        self._drain()
        self.finish_buffers()

    def _drain(self) -> None:
        if self.iteration.phase is Phase.STEPPED:
            self.monitor.wait(lambda: self.iteration.outdated_variables == 0)
        elif self.iteration.phase is Phase.REDUCING:
            self.monitor.wait(lambda: self.iteration.unreduced_buckets == 0)
        self.streams.wait_last_events(self.variables)
        self.pending_parameters.release_all()

    def finish_buffers(self) -> None:
        """Wait for rank 0's module buffers, if their broadcast has begun."""
        if not self._buffers.has_left():
            self.monitor.wait(self._buffers.has_left)
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self._buffers.finish(self.monitor.wait_for_work)

    def before_load(self) -> None:
        """The script is about to load values into the model, or into a module of it."""
        self.flush()
        if self.values is not None:
            self.values.before_load()

    def drop_gradients(self) -> None:
        """`zero_grad()` without a `step()`: drop what was reduced."""
        if self.iteration.phase is Phase.REDUCING:
            self.flush()
            self.gradients.make_plain()
            self.iteration.phase = Phase.IDLE
            self.iteration.outdated_variables = 0
            self._note_dropped()

    def _note_dropped(self) -> None:
        """An iteration ends without a `step()`; another rank that stepped may wait for values."""
        if any(bucket.values_travel for bucket in self.buckets):
            self.monitor.refusals.drop(self.iteration.number)

    # --- the script's forward and backward pass

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before

    def begin_forward(self) -> None:
        """Also after a backward pass that ended with an exception and never called back."""
        if within_backward():
            return
        self.monitor.check()
        self.optimizer_step.check_finished()
        with self.monitor.refusing():
            self.storage.check_forward()
        self.finish_buffers()
        if self.values is not None:
            self.values.begin_forward()
        self._expected_end = lambda: None
        if self.iteration.phase is Phase.BACKWARD:
            raise self.monitor.stop(gradients_missing())

    def before_buffers(self) -> None:
        """A module is about to read its buffers: the script may call it by itself."""
        if not within_backward():
            self.finish_buffers()

    def _begin_backward(self) -> None:
        """Open an iteration, with the first gradient of a backward pass."""
        if self.iteration.phase is Phase.REDUCING and self.gradients.any_left():
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self.optimizer_step.check_finished()
        if self.iteration.phase is Phase.REDUCING:
            self._note_dropped()
        with self.monitor.refusing():
            if self._expected_end() is None and inside_another():
                raise unknown_end()
            if torch.is_grad_enabled():
                raise with_graph()
        self._drain()
        with self.monitor.refusing():
            self.storage.check_backward()
        if not self.records.model_is_divided:
            self._compare_values(self.iteration.number + 1)
        with self.monitor.condition:
            self.optimizer_step.begin()
            self.gradients.scaler_looked = False
            self.iteration.rewind()
            self.queues.rewind()
            self.iteration.phase = Phase.BACKWARD
        self._forget_waiting()
        self._versions = self._current_versions()
        self.expect_end()

    def _compare_values(self, iteration: int) -> None:
        if self.values is None:
            return
        with self.monitor.exchange("the comparison of parameter values"):
            error = self.values.difference(iteration, self.monitor.wait_for_work)
        if error is not None:
            self.monitor.stop(error)
            raise error

    def _current_versions(self) -> list[int]:
        return [variable.parameter._version for variable in self.variables]

    def expect_end(self) -> None:
        """Request a callback at the end of the running backward pass. The model's outputs
        request it first, because the inner backward of a reentrant checkpoint ends too early."""
        if self.synchronizing and self._expected_end() is None:
            end = self._end_backward  # held by the pass alone: gone where that fails
            self._expected_end = ref(end)
            Autograd._execution_engine.queue_callback(end)

    def arrived(self, variable: VariableRecord) -> None:
        """The gradient of a variable is complete. Its hook calls this, once in a backward pass.

        Several gradients are packed together: at the last of a bucket, or when there are many.
        Until then they are in memory twice. If the script has hooks of the same node that run
        later, the gradient is packed when the next one arrives, after these hooks.
        """
        if self.iteration.phase is not Phase.BACKWARD:
            self._begin_backward()
        if variable.has_arrived:
            with self.monitor.refusing():
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
            with self.monitor.refusing():
                raise
        self._packed(waiting)

    def _forget_waiting(self) -> None:
        self._waiting, self._waiting_bytes, self._is_due = [], 0, False

    def _packed(self, variables: list[VariableRecord]) -> None:
        """These gradients are in their buffers. Issue the messages of full buckets."""
        full = False
        self.streams.order_packing()
        for variable in variables:
            for bucket in variable.buckets:
                if bucket.missing_gradients == 1:  # at 0 a completion thread may issue it
                    bucket.packed_seconds = time.monotonic()
                    bucket.packed_event = self.streams.record_event()
                    full = True
                bucket.missing_gradients -= 1
        if full:
            with self.monitor.condition:
                self.queues.issue_ready()

    def _end_backward(self) -> None:
        """Variables without a gradient count as zero. If nothing continues during the next forward
        pass, gradients are complete when `backward()` returns, as with torch's DDP."""
        self._expected_end = lambda: None  # a thread of a GPU may hold the pass a little longer
        if self.iteration.phase is not Phase.BACKWARD:
            return
        with torch.no_grad():
            self._pack_late()
        self._check_unchanged()
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self._buffers.start(self.monitor.wait_for_work)
        if self._buffers.in_order() is not None:
            with self.monitor.condition:
                self.queues.issue_ready()
        if self.records.model_is_divided:  # before, a rank may wait for its peers' backward passes
            self._compare_values(self.iteration.number)
        with self.monitor.condition:
            self.iteration.phase = Phase.REDUCING
        # A GPU may still work on what the host has completed: readers wait for its events.
        self.gradients.make_pending(completed=self.streams.asynchronous)
        self.monitor.wait(lambda: self.iteration.blocking_variables == 0)
        awaited = [v for v in self.variables if v.whole and not v.deferred]
        self.streams.wait_last_events(awaited)
        with self.monitor.exchange("the count of unused variables"):
            self.completion.drop_unused([v for v in awaited if not v.held_by_some])

    def _pack_late(self) -> None:
        """Pack the rest: gradients of earlier passes, and zeros."""
        late = [variable for variable in self.variables if not variable.has_arrived]
        absent = [variable for variable in late if variable.parameter.grad is None]
        with self.monitor.exchange("the count of unused variables"):
            self._unused.post(self.iteration.number, (variable.index for variable in absent))
        for variable in late:
            variable.has_arrived = True
        for variable in absent:
            pack_zeros(variable)
        self._waiting += [v for v in late if v not in absent]  # of passes under no_sync
        self._pack_waiting()
        self._packed(absent)

    def _check_unchanged(self) -> None:
        """An optimizer that steps in hooks has updated parameters with this rank's gradients."""
        if (versions := self._current_versions()) == self._versions:
            return
        pairs = zip(self.variables, versions, self._versions, strict=True)
        changed = next(variable for variable, now, before in pairs if now != before)
        with self.monitor.refusing():
            raise changed_within(changed.name)
