"""Takes a plan through the iterations of a training script.

A round opens with the first gradient of a backward pass; `step()` closes it for the script, and
what may run into the next forward pass ends behind it. One lock guards all state; the work
itself (waiting, summing, updating) happens outside of it.

On a GPU all of this is about what has been asked for; in which order it is done, marks keep:
arrivals and updates are on a stream of their own, which stays behind the moment of `step()`, and
the script's stream stays behind the marks of the variables that it goes on to read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.errors import AutosyncError, NotSupported
from autosync.plan import Plan
from autosync.runtime.completion import Completion
from autosync.runtime.execution_trace import ExecutionTrace
from autosync.runtime.failures import SynchronizationFailed
from autosync.runtime.hooks.module_buffers import BufferBroadcast
from autosync.runtime.hooks.pending_gradients import (
    check_synchronized,
    incomplete,
    left_over,
    mark,
    settle,
    unmark,
)
from autosync.runtime.iteration import Iteration, Phase
from autosync.runtime.layout.build import Records
from autosync.runtime.layout.issue_order import issue_order
from autosync.runtime.layout.packing import pack_zeros, show_gradients, take_back
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.monitor import Monitor
from autosync.runtime.payloads.powersgd_state import Kept, kept_errors, take_errors
from autosync.runtime.streams import HOST, Streams
from autosync.runtime.updates.clipping import agree_on_infinity, clip_gradients, loss_scale
from autosync.runtime.updates.optimizer_application import OptimizerApplication
from autosync.runtime.updates.optimizer_state import gather_state, scatter_state
from autosync.runtime.updates.unused_variables import Unused


class Engine:
    """The state of one attached plan.

    kind: the optimizer's own class. synchronizing: False inside `no_sync`.
    control: a process group of all ranks for small exchanges. pending: variables whose gradients
    are not complete when backward returns. shown: a GradScaler has seen the gradients of this
    round. grad_norm: before the last clipping. patience_seconds: see `ChannelQueue`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        records: Records,
        abort: Callable[[], None],
        group: dist.ProcessGroup,
        control: Any,
        unused: Unused,
        buffers: BufferBroadcast,
        max_grad_norm: float | None = None,
        trace: ExecutionTrace | None = None,
        streams: Streams = HOST,
        patience_seconds: float = 0.0,
    ):
        self.optimizer = optimizer
        self.kind = type(optimizer)
        self.plan = plan
        self.variables = records.variables
        self.buckets = records.buckets
        self.steps = records.steps
        self.low_rank = records.low_rank
        self.streams = streams
        self.group = group
        self.control = control
        self.unused = unused
        self.buffers = buffers
        self.max_grad_norm = max_grad_norm
        self.grad_norm = 0.0
        self.shown = False
        self.expected = False
        self.synchronizing = True
        self.applying = OptimizerApplication(optimizer, self.kind, unused, streams)
        self.round = Iteration(records)
        self.all_whole = all(v.whole for v in self.variables)
        self.pending = [v for v in self.variables if v.deferred or not v.whole]
        self.monitor = Monitor(abort, any(bucket.travels for bucket in self.buckets), trace)
        self.condition = self.monitor.condition
        self.arrivals = Completion(
            self.round, self.applying, self.monitor, streams, trace, patience_seconds
        )

    @property
    def failure(self) -> AutosyncError | None:
        return self.monitor.failure

    @failure.setter
    def failure(self, error: AutosyncError) -> None:
        self.monitor.failure = error

    def __deepcopy__(self, memo: dict[int, Any]) -> "Engine":
        """A copied model keeps its hooks; they are of no effect on the copy."""
        return self

    @property
    def phase(self) -> Phase:
        return self.round.phase

    def start(self) -> None:
        """Start the threads of every queue of messages."""
        self.arrivals.start(self.steps[index] for index in issue_order(self.plan))

    def close(self) -> None:
        """Stop every thread. Call `flush` before, unless the engine failed."""
        self.arrivals.close()
        self.buffers.close()

    # --- backward

    def begin_backward(self) -> None:
        """Open a round: called with the first gradient of a backward pass."""
        if self.phase is Phase.REDUCING and left_over(self.pending):
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self._drain()
        with self.condition:
            self.shown = False
            self.round.rewind()
            self.arrivals.rewind()
            self.round.phase = Phase.BACKWARD
        self.expect_end()

    def expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs
        ask first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self.expected:
            self.expected = True
            Autograd._execution_engine.queue_callback(self.end_backward)

    def begin_forward(self) -> None:
        """A backward pass that ended with an exception never called back."""
        if torch._C._current_graph_task_id() != -1:  # recomputed within a backward pass
            return
        self.monitor.check()
        self._finish_buffers()
        self.expected = False
        if self.phase is Phase.BACKWARD:
            raise SynchronizationFailed(
                "the last backward pass ended with an error, so this rank's gradients are missing.",
                thing="backward",
                remedy="Start all ranks again from the last checkpoint.",
            )

    def end_forward(self) -> None:
        """Module buffers are final: they travel beside the backward pass."""
        with self.monitor.talking("the broadcast of module buffers"):
            self.buffers.start()

    def packed(self, variable: VariableRecord) -> None:
        """The gradient of a variable is in its buffers."""
        variable.fired = True
        ready = False
        self.streams.packing()
        for bucket in variable.buckets:
            if bucket.waiting == 1:  # at 0 a landing thread may issue it
                bucket.packed_seconds = time.monotonic()
                bucket.packed_mark = self.streams.mark()
                ready = True
            bucket.waiting -= 1
        if ready:
            with self.condition:
                self.arrivals.pump()

    def end_backward(self) -> None:
        """Variables without a gradient count as zero; where nothing runs into the next forward
        pass, gradients are complete when `backward()` returns, as with torch's DDP."""
        self.expected = False
        if self.phase is not Phase.BACKWARD:
            return
        late = [variable for variable in self.variables if not variable.fired]
        absent = [variable for variable in late if variable.parameter.grad is None]
        with self.monitor.talking("the count of unused variables"):
            self.unused.post(self.round.iteration, (variable.index for variable in absent))
        for variable in late:
            if variable.pack is not None and variable not in absent:  # under no_sync, before
                variable.pack(variable.parameter)
            else:
                pack_zeros(variable)
                self.packed(variable)
        with self.condition:
            self.round.phase = Phase.REDUCING
        # What a GPU's host has landed may be under way on the GPU: who reads it stays behind.
        self.mark_gradients(landed=self.streams.asynchronous)
        self.monitor.wait(lambda: self.round.blocking == 0)
        self.streams.stay_behind(v for v in self.variables if v.whole and not v.deferred)

    # --- gradients between backward and step

    def mark_gradients(self, landed: bool = False) -> None:
        """landed: those, too, whose sums are here."""
        with self.condition:  # a landing thread may show a sparse sum
            mark(self, (v for v in self.pending if landed or v.missing or not v.whole))

    def complete(self, variable: VariableRecord) -> None:
        """See `pending.Holder`."""
        if self.phase is not Phase.REDUCING:  # kept from an earlier iteration
            return
        if not variable.whole:
            raise incomplete(variable, "was read between backward and step()")
        self.monitor.wait(lambda: variable.missing == 0)
        self.streams.stay_behind([variable])
        unmark([variable])

    def show_gradients(self) -> None:
        """A GradScaler inspects and unscales the gradients. A collective where updates are owned
        or sharded: all ranks must find the same infinities."""
        if self.phase is not Phase.REDUCING:
            return
        self.monitor.wait(lambda: self.round.unreduced == 0)
        self.streams.stay_behind(self.variables)
        unmark(self.pending)
        if self.shown:
            return
        self.shown = True
        for bucket in self.buckets:
            if not bucket.whole:
                show_gradients(bucket)
        if any(bucket.travels for bucket in self.buckets):
            with self.monitor.talking("the search for infinities"):
                agree_on_infinity(self.variables, self.buckets, self.control)

    # --- step

    def step(self) -> None:
        """The script's `optimizer.step()`."""
        if self.phase is not Phase.REDUCING:
            check_synchronized(self.variables)
            return
        replaced = settle(self.pending)
        self.monitor.wait(lambda: all(variable.missing == 0 for variable in replaced))
        for variable in replaced:  # the script's own tensors, which an update reads later
            if variable.parameter.grad is not None:
                self.streams.lend(variable.parameter.grad)
        self._prepare_gradients()
        self.applying.release()
        with self.condition:
            self.round.phase = Phase.STEPPED
            claimed = [bucket for bucket in self.buckets if self.round.claim(bucket)]
        for bucket in claimed:
            self.arrivals.update(bucket)
        self.monitor.wait(lambda: self.round.blocking == 0)
        with self.condition:
            ripe = self.round.take_ripe()
        with self.streams.landing():
            self.applying.whole(ripe, self.all_whole and len(ripe) == len(self.variables))
            self.arrivals.updated(ripe)
        for variable in self.pending:
            variable.parameter.grad = None
        self.monitor.wait(lambda: all(v.owing == 0 or v.deferred for v in self.variables))
        self.streams.stay_behind(v for v in self.variables if not v.deferred)

    def _prepare_gradients(self) -> None:
        """Under clipping or a scaler every reduction ends before any update."""
        if not (self.shown or self.max_grad_norm):
            return
        self.monitor.wait(lambda: self.round.unreduced == 0)
        self.streams.stay_behind(self.variables)
        if self.shown:
            for bucket in self.buckets:
                if bucket.flat:
                    take_back(bucket)
        if self.max_grad_norm:
            with self.monitor.talking("clipping by the global norm"):
                scale = loss_scale(self.optimizer)
                limit = self.max_grad_norm * scale
                norm = clip_gradients(self.variables, self.buckets, self.control, limit)
                self.grad_norm = norm / scale

    @contextmanager
    def gathered_state(self) -> Iterator[Kept]:
        """The optimizer holds the state of every variable; yields what PowerSGD keeps. A collective
        where updates are owned or sharded, or messages packed by PowerSGD."""
        self.flush()
        with self.monitor.talking("the gathering of the optimizer's state"):
            gathered = gather_state(self.optimizer, self.variables, self.buckets, self.group)
            kept = kept_errors(self.optimizer, self.low_rank, self.control)
        yield kept
        for variable in gathered:
            self.optimizer.state.pop(variable.parameter)

    def scatter_state(self, kept: Kept) -> None:
        """Take the parts that this rank updates out of the optimizer, and its part of `kept`."""
        scatter_state(self.optimizer, self.buckets)
        take_errors(self.optimizer, self.low_rank, kept, self.group.size())

    # --- waiting

    def wait_for(self, variables: list[VariableRecord]) -> None:
        """Before a forward that reads these variables."""
        if self.phase is not Phase.STEPPED:
            return
        if self.round.due or self.failure:
            self.monitor.wait(lambda: all(variable.owing == 0 for variable in variables))
        self.streams.stay_behind(variables)

    def flush(self) -> None:
        """Wait for everything that is under way, module buffers included."""
        self.monitor.check()
        self._drain()
        self._finish_buffers()

    def _finish_buffers(self) -> None:
        with self.monitor.talking("the broadcast of module buffers"):
            self.buffers.finish()

    def _drain(self) -> None:
        if self.phase is Phase.STEPPED:
            self.monitor.wait(lambda: self.round.due == 0)
        elif self.phase is Phase.REDUCING:
            self.monitor.wait(lambda: self.round.unreduced == 0)
        self.streams.stay_behind(self.variables)

    def drop_gradients(self) -> None:
        """`zero_grad()` without a `step()`: what was reduced is of no use."""
        if self.phase is Phase.REDUCING:
            self.flush()
            unmark(self.pending)
            self.round.phase = Phase.IDLE
            self.round.due = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before
