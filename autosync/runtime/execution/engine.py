"""Takes a plan through the iterations of a training script.

An iteration opens with the first gradient of a backward pass; `step()` closes it for the script,
and what may run into the next forward pass ends behind it. One lock, the monitor's, guards all
state; the work itself (waiting, summing, updating) happens outside of it.

On a GPU this thread only asks for work. Device events keep its order: landings and updates are on a
stream of their own, which waits for the moment of `step()`, and the script's stream waits for the
last event of the variables that it goes on to read.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.errors import AutosyncError, NotSupported
from autosync.plan import Plan
from autosync.runtime.device.streams import HOST, Streams
from autosync.runtime.execution.completion import Completion
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.iteration import IterationState, Phase
from autosync.runtime.execution.message_queues import MessageQueues
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.nested_backward import inside_another
from autosync.runtime.execution.owed_parameters import OwedParameters
from autosync.runtime.execution.parameter_storage import ParameterStorage
from autosync.runtime.execution.pending_gradients import check_synchronized
from autosync.runtime.execution.script_gradients import ScriptGradients
from autosync.runtime.execution.step_turns import StepTurns
from autosync.runtime.layout.packing import pack_zeros
from autosync.runtime.layout.queue_order import issue_order
from autosync.runtime.layout.records import Records, VariableRecord
from autosync.runtime.payloads.powersgd_state import SavedErrors
from autosync.runtime.transport.failures import SynchronizationFailed
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.peer_refusals import Refusals
from autosync.runtime.updates.clipping import clipping_of_several
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers
from autosync.runtime.updates.optimizer_application import OptimizerApplication
from autosync.runtime.updates.optimizer_state import ShardedOptimizerState
from autosync.runtime.updates.unused_variables import UnusedVariables


class Engine:
    """One attached plan at work.

    optimizer_class: the optimizer's own. synchronizing: False inside `no_sync`. turns: of several
    optimizers. control: a process group of all ranks for small exchanges. gradients: in the
    script's hands. storage: of the parameters, which the script may exchange. owed: parameters
    whose values are on their way.
    patience_seconds: see `MessageQueue`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        records: Records,
        state: ShardedOptimizerState,
        abort: Callable[[], None],
        control: Any,
        unused: UnusedVariables,
        buffers: BufferBroadcast,
        storage: ParameterStorage,
        refusals: Refusals,
        max_grad_norm: float | None = None,
        trace: ExecutionTrace | None = None,
        streams: Streams = HOST,
        patience_seconds: float = 0.0,
    ):
        self.optimizer = optimizer
        self.optimizer_class = type(optimizer)
        self.plan = plan
        self.variables = records.variables
        self.buckets = records.buckets
        self.messages = records.messages
        self.state = state
        self.streams = streams
        self.control = control
        self.unused = unused
        self.buffers = buffers
        self.storage = storage
        self.owed = OwedParameters(self.variables, self.wait_for)
        self.end_is_expected = False
        self.buffers_sent = False
        self.synchronizing = True
        self.all_whole = all(v.whole for v in self.variables)
        self.application = OptimizerApplication(optimizer, self.optimizer_class, unused, streams)
        self.iteration = IterationState(records)
        values_travel = any(bucket.values_travel for bucket in self.buckets)
        self.monitor = Monitor(abort, values_travel, refusals, trace)
        self.condition = self.monitor.condition
        self.completion = Completion(self.iteration, self.application, self.monitor, streams, trace)
        self.gradients = ScriptGradients(
            optimizer,
            self.variables,
            self.buckets,
            self.iteration,
            self.monitor,
            streams,
            control,
            max_grad_norm,
        )
        self.turns: StepTurns | None = None
        if isinstance(optimizer, JoinedOptimizers):
            self.turns = StepTurns(optimizer, self.variables, bool(self.gradients.pending))
            if max_grad_norm and not self.turns.together:
                raise clipping_of_several()
        self.queues = MessageQueues(self.completion, self.monitor, streams, patience_seconds)

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
        return self.iteration.phase

    def optimizer_class_of(self, optimizer: Optimizer) -> type[Optimizer]:
        """The class that an optimizer of the script had before it followed the plan."""
        if isinstance(self.optimizer, JoinedOptimizers):
            return self.optimizer.classes[self.optimizer.optimizers.index(optimizer)]
        return self.optimizer_class

    def start(self) -> None:
        """Start the threads of every queue of messages."""
        self.queues.start(self.messages[index] for index in issue_order(self.plan))

    def close(self) -> None:
        """Stop every thread. Call `flush` before, unless the engine failed."""
        self.queues.close()
        self.buffers.close()

    # --- backward

    def begin_backward(self) -> None:
        """Open an iteration: called with the first gradient of a backward pass."""
        if self.phase is Phase.REDUCING and self.gradients.any_left():
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self._check_turns()
        if not self.end_is_expected and inside_another():
            raise NotSupported(
                "a reentrant checkpoint runs its own backward pass, and the model itself was not "
                "called, so where the whole backward pass ends is not known.",
                thing="backward",
                remedy="Checkpoint with use_reentrant=False, or call model(...) itself.",
            )
        self._drain()
        with self.monitor.refusing():
            self.storage.check_backward()
        if not self.buffers_sent:  # the script called a submodule, or another method than forward
            self.end_forward()
        self.buffers_sent = False
        with self.condition:
            if self.turns is not None:
                self.turns.begin()
            self.gradients.scaler_looked = False
            self.iteration.rewind()
            self.queues.rewind()
            self.iteration.phase = Phase.BACKWARD
        self.expect_end()

    def expect_end(self) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs
        ask first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self.end_is_expected:
            self.end_is_expected = True
            Autograd._execution_engine.queue_callback(self.end_backward)

    def begin_forward(self) -> None:
        """A backward pass that ended with an exception never called back."""
        if torch._C._current_graph_task_id() != -1:  # recomputed within a backward pass
            return
        self.monitor.check()
        self._check_turns()
        with self.monitor.refusing():
            self.storage.check_forward()
        self._finish_buffers()
        self.end_is_expected = False
        if self.phase is Phase.BACKWARD:
            raise SynchronizationFailed(
                "the last backward pass ended with an error, so this rank's gradients are missing.",
                thing="backward",
                remedy="Start all ranks again from the last checkpoint.",
            )

    def end_forward(self) -> None:
        """Module buffers are final: they travel beside the backward pass."""
        with self.monitor.exchange("the broadcast of module buffers"):
            self.buffers.start()
        self.buffers_sent = True

    def packed(self, variable: VariableRecord) -> None:
        """The gradient of a variable is in its buffers. Its last bucket to be full leaves."""
        if variable.is_packed:
            raise NotSupported(
                f"the gradient of {variable.name!r} became ready twice in one backward pass.",
                thing=f"variable {variable.name}",
                remedy="Where reentrant checkpoints share a weight, use use_reentrant=False; after "
                "a backward pass that failed, start all ranks again from the last checkpoint.",
            )
        variable.is_packed = True
        full = False
        self.streams.order_packing()
        for bucket in variable.buckets:
            if bucket.missing_gradients == 1:  # at 0 a landing thread may issue it
                bucket.packed_seconds = time.monotonic()
                bucket.packed_event = self.streams.record_event()
                full = True
            bucket.missing_gradients -= 1
        if full:
            with self.condition:
                self.queues.issue_ready()

    def end_backward(self) -> None:
        """Variables without a gradient count as zero; where nothing runs into the next forward
        pass, gradients are complete when `backward()` returns, as with torch's DDP."""
        self.end_is_expected = False
        if self.phase is not Phase.BACKWARD:
            return
        late = [variable for variable in self.variables if not variable.is_packed]
        absent = [variable for variable in late if variable.parameter.grad is None]
        with self.monitor.exchange("the count of unused variables"):
            self.unused.post(self.iteration.number, (variable.index for variable in absent))
        for variable in late:
            if variable.pack is not None and variable not in absent:  # under no_sync, before
                variable.pack(variable.parameter)
            else:
                pack_zeros(variable)
                self.packed(variable)
        with self.condition:
            self.iteration.phase = Phase.REDUCING
        # What the host has landed a GPU may still be at work on: its readers wait for events.
        self.gradients.make_gradients_pending(landed=self.streams.asynchronous)
        self.monitor.wait(lambda: self.iteration.blocking_variables == 0)
        self.streams.wait_last_events(v for v in self.variables if v.whole and not v.deferred)

    # --- step

    def step(self, optimizer: Optimizer) -> None:
        """The `step()` of the script's optimizer, or of one of them."""
        self.monitor.check()
        with self.monitor.refusing():
            self.storage.check_step()
        if self.phase is not Phase.REDUCING:
            check_synchronized(self.variables)
        elif self.turns is None or (self.turns.together and self.turns.note(optimizer)):
            self._step()
        elif not self.turns.together:
            self._step_alone(self.turns, optimizer)

    def _step_alone(self, turns: StepTurns, optimizer: Optimizer) -> None:
        """Update what one of several optimizers holds; all sums are here."""
        updated = turns.take(optimizer)
        self.gradients.take_for_step()
        self.application.note_step()
        with self.streams.landing():
            self.application.update_whole(updated, all_of_them=False)
            self.streams.set_last_event(updated)
        if turns.all_taken():
            with self.condition:
                self.iteration.phase = Phase.STEPPED
                self.iteration.values_arrived(self.iteration.take_updatable())
            if not self.streams.mode.threads:
                self._finish_buffers()
        self.streams.wait_last_events(updated)

    def _step(self) -> None:
        self.gradients.take_for_step()
        self.application.note_step()
        with self.condition:
            self.iteration.phase = Phase.STEPPED
            claimed = [bucket for bucket in self.buckets if self.iteration.claim(bucket)]
        for bucket in claimed:
            self.queues.update_bucket(bucket)
        self.monitor.wait(lambda: self.iteration.blocking_variables == 0)
        with self.condition:
            updatable = self.iteration.take_updatable()
        with self.streams.landing():
            every = self.all_whole and len(updatable) == len(self.variables)
            all_of_them = every and self.turns is None
            self.completion.update_whole(updatable, all_of_them)
        for variable in self.gradients.pending:
            variable.parameter.grad = None
        awaited = [v for v in self.variables if not v.deferred] + self.owed.unguarded
        self.monitor.wait(lambda: all(v.missing_values == 0 for v in awaited))
        self.streams.wait_last_events(awaited)
        self.owed.mark(of_a_device=self.streams.asynchronous)
        if not self.streams.mode.threads:  # else a thread waits for the device: not here
            self._finish_buffers()

    @contextmanager
    def gathered_state(self) -> Iterator[SavedErrors]:
        """The optimizer holds the state of every variable; yields what PowerSGD saves. A collective
        where updates are owned or sharded, or messages packed by PowerSGD."""
        self.flush()
        with self.monitor.exchange("the gathering of the optimizer's state"):
            gathered = self.state.gather("optimizer.state_dict()")
            errors = self.state.gather_errors()
        yield errors
        for variable in gathered:
            self.optimizer.state.pop(variable.parameter)

    # --- waiting

    def wait_for(self, variables: list[VariableRecord]) -> None:
        """Before a forward that reads these variables."""
        if self.phase is not Phase.STEPPED:
            return
        if self.iteration.outdated_variables or self.failure:
            self.monitor.wait(lambda: all(variable.missing_values == 0 for variable in variables))
        self.streams.wait_last_events(variables)
        self.owed.release(variables)

    def flush(self) -> None:
        """Wait for every message and update in flight, module buffers included."""
        self.monitor.check()
        self._check_turns()
        self._drain()
        self._finish_buffers()

    def _check_turns(self) -> None:
        if self.turns is not None and self.phase is Phase.REDUCING:
            self.turns.check_finished()

    def _finish_buffers(self) -> None:
        with self.monitor.exchange("the broadcast of module buffers"):
            self.buffers.finish()

    def _drain(self) -> None:
        if self.phase is Phase.STEPPED:
            self.monitor.wait(lambda: self.iteration.outdated_variables == 0)
        elif self.phase is Phase.REDUCING:
            self.monitor.wait(lambda: self.iteration.unreduced_buckets == 0)
        self.streams.wait_last_events(self.variables)
        self.owed.release_all()

    def drop_gradients(self) -> None:
        """`zero_grad()` without a `step()`: what was reduced is of no use. Not where several
        optimizers step by themselves: the others may still."""
        alone = self.turns is not None and not self.turns.together
        if self.phase is Phase.REDUCING and not alone:
            self.flush()
            self.gradients.make_plain()
            self.iteration.phase = Phase.IDLE
            self.iteration.outdated_variables = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before
