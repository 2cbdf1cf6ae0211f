"""Takes a plan through the iterations of a training script.

A round opens with the first gradient of a backward pass; `step()` closes it for the script, and
what may run into the next forward pass ends behind it. One lock guards all state; the work
itself (waiting, summing, updating) happens outside of it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from threading import Condition, RLock
from typing import Any

import torch
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.codes import Update
from autosync.errors import AutosyncError, NotSupported
from autosync.plan import Plan
from autosync.runtime import updates
from autosync.runtime.build import Records
from autosync.runtime.channels import ChannelQueue
from autosync.runtime.errors import SynchronizationFailed
from autosync.runtime.records import Content, Step, Variable
from autosync.runtime.trace import Event, Trace


class Phase(Enum):
    """Where the script is in its iteration."""

    IDLE = 0
    BACKWARD = 1
    REDUCING = 2
    STEPPED = 3


class Engine:
    """The state of one attached plan.

    kind: the optimizer's own class. synchronizing: False inside `no_sync`.
    due: variables that are not current yet. blocking: whole variables that `step()` waits for
    and whose reductions are missing. ripe: reduced whole variables that nobody updates yet.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        records: Records,
        abort: Callable[[], None],
        trace: Trace | None = None,
    ):
        self.optimizer = optimizer
        self.kind = type(optimizer)
        self.plan = plan
        self.variables = records.variables
        self.contents = records.contents
        self.steps = records.steps
        self.abort = abort
        self.trace = trace
        self.synchronizing = True
        self.phase = Phase.IDLE
        self.iteration = -1
        self.failure: AutosyncError | None = None
        self.hyper: list[updates.Group] = []
        self.ripe: list[Variable] = []
        self.due = 0
        self.blocking = 0
        self.unreduced = 0
        self.all_whole = all(v.whole for v in self.variables)
        self.once_per_step = any(v.deferred or not v.whole for v in self.variables)
        self.condition = Condition(RLock())
        self.channels: list[ChannelQueue] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "Engine":
        """A copied model keeps its hooks; they are of no effect on the copy."""
        return self

    def start(self) -> None:
        """Start one landing thread per channel that the plan uses."""
        for channel in sorted({step.channel for step in self.steps}):
            steps = [step for step in self.steps if step.channel == channel]
            self.channels.append(ChannelQueue(channel.name, steps, self._landed, self._failed))

    def close(self) -> None:
        """Stop every thread. Call `flush` before, unless the engine failed."""
        for channel in self.channels:
            channel.close()
        self.channels.clear()

    # --- backward

    def begin_backward(self) -> None:
        """Open a round: called with the first gradient of a backward pass."""
        if self.phase is Phase.REDUCING and self.once_per_step:
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self.flush()
        with self.condition:
            self._rewind()
            self.phase = Phase.BACKWARD
        Autograd._execution_engine.queue_callback(self.end_backward)  # type: ignore[attr-defined]

    def _rewind(self) -> None:
        self.iteration += 1
        for content in self.contents:
            content.waiting = len(content.variables)
            content.reduced = content.claimed = content.updated = False
        for variable in self.variables:
            variable.fired = False
            variable.missing = len(variable.contents)
            variable.owing = 1 if variable.whole else len(variable.contents)
        for step in self.steps:
            step.done = False
        for channel in self.channels:
            channel.rewind()
        self.ripe.clear()
        self.due = len(self.variables)
        self.unreduced = len(self.contents)
        self.blocking = sum(v.whole and not v.deferred for v in self.variables)

    def packed(self, variable: Variable) -> None:
        """The gradient of a variable is in its buffers."""
        variable.fired = True
        ready = False
        for content in variable.contents:
            content.waiting -= 1
            ready |= content.waiting == 0
        if ready:
            with self.condition:
                self._pump()

    def end_backward(self) -> None:
        """Variables without a gradient count as zero; where nothing runs into the next forward
        pass, gradients are complete when `backward()` returns, as with torch's DDP."""
        for variable in self.variables:
            if not variable.fired:
                self._pack_zeros(variable)
        with self.condition:
            self.phase = Phase.REDUCING
        self._wait(lambda: self.blocking == 0)

    def _pack_zeros(self, variable: Variable) -> None:
        for content in variable.contents:
            for member, _, view in content.pieces:
                if member is variable:
                    view.zero_()
        if variable.view is None and variable.whole:
            variable.target = torch.zeros_like(variable.alias)
            variable.parameter.grad = variable.target
        elif variable.view is not None:
            variable.parameter.grad = variable.target = variable.view
        self.packed(variable)

    # --- arrivals

    def _pump(self) -> None:
        for channel in self.channels:
            channel.pump()

    def _landed(self, step: Step) -> None:
        """A message has arrived: runs on the landing thread of its channel."""
        content = step.content
        reduces = step.message.update != Update.NONE
        with torch.no_grad():
            if step.last and content.travels:
                unpack_values(content)
            elif reduces and content.whole:
                hand_back(content)
        self._note(step)
        with self.condition:
            step.done = True
            ripe = self._reduced(content) if reduces else []
            if step.last and content.travels:
                self._values_arrived(content)
            claimed = self._claim(content)
            self._pump()
            self.condition.notify_all()
        if claimed:
            self._update_flat(content)
        if ripe:
            self._update_ripe(ripe)

    def _reduced(self, content: Content) -> list[Variable]:
        """Count down; returns the whole variables to update here and now."""
        content.reduced = True
        self.unreduced -= 1
        now = []
        for variable in content.variables:
            variable.missing -= 1
            if variable.missing or not variable.whole:
                continue
            if self.phase is Phase.STEPPED and variable.deferred:
                now.append(variable)
            else:
                self.ripe.append(variable)
            self.blocking -= not variable.deferred
        return now

    def _claim(self, content: Content) -> bool:
        """Whether the caller is to run the flat update of a content. The lock is held."""
        if content.whole or content.claimed or not content.reduced:
            return False
        content.claimed = self.phase is Phase.STEPPED
        return content.claimed

    def _update_flat(self, content: Content) -> None:
        with torch.no_grad():
            if content.flat:
                content.flat.run(self.optimizer, self.hyper)
            if not content.travels:
                unpack_values(content)
        with self.condition:
            content.updated = True
            if not content.travels:
                self._values_arrived(content)
            self._pump()
            self.condition.notify_all()

    def _update_ripe(self, ripe: list[Variable]) -> None:
        updates.update_aliases(self.kind, self.optimizer, ripe, self.hyper)
        with self.condition:
            for variable in ripe:
                self._current(variable)
            self.condition.notify_all()

    def _values_arrived(self, content: Content) -> None:
        for variable in content.variables:
            self._current(variable)

    def _current(self, variable: Variable) -> None:
        variable.owing -= 1
        self.due -= variable.owing == 0

    def _note(self, step: Step) -> None:
        if self.trace is not None:
            message, buffer = step.message, step.content.buffer
            size = step.content.size * buffer.element_size() if step.start else 0
            self.trace.events.append(
                Event(
                    self.iteration,
                    step.index,
                    message.operation,
                    message.channel,
                    message.content,
                    step.started_seconds,
                    time.monotonic(),
                    size,
                )
            )

    def _failed(self, error: BaseException, step: Step) -> None:
        """A message cannot arrive. Ending the groups makes every other rank notice too."""
        with self.condition:
            if self.failure is None:
                message = step.message
                self.failure = SynchronizationFailed(
                    f"{message.operation.name} of message {step.index} failed: {error}",
                    thing=f"message {step.index}",
                    value=message.operation.name,
                    remedy="A peer died, hung past the timeout, or runs another plan: see its log.",
                )
            self.condition.notify_all()
        self.abort()

    # --- step

    def step(self, grad_scale: Any = None, found_inf: Any = None) -> None:
        """The script's `optimizer.step()`."""
        if self.phase is not Phase.REDUCING:
            self._step_without_gradients()
            return
        self.hyper = updates.snapshot(self.optimizer)
        with self.condition:
            self.phase = Phase.STEPPED
            claimed = [content for content in self.contents if self._claim(content)]
        for content in claimed:
            self._update_flat(content)
        self._wait(lambda: self.blocking == 0)
        with self.condition:
            ripe, self.ripe = self.ripe, []
        self._update_here(ripe)
        for variable in self.variables:
            if variable.deferred or not variable.whole:
                variable.parameter.grad = None
        self._wait(lambda: all(v.owing == 0 or v.deferred for v in self.variables))

    def _step_without_gradients(self) -> None:
        for variable in self.variables:
            if variable.parameter.grad is not None:
                raise NotSupported(
                    f"optimizer.step() found a gradient of {variable.name!r} that no backward "
                    "pass has synchronized.",
                    thing=f"variable {variable.name}",
                    remedy="Run the last backward pass before step() outside of no_sync().",
                )

    def _update_here(self, ripe: list[Variable]) -> None:
        if self.all_whole and len(ripe) == len(self.variables):
            self.kind.step(self.optimizer)
        else:
            updates.update_parameters(self.kind, self.optimizer, ripe, self.hyper)
        with self.condition:
            for variable in ripe:
                self._current(variable)
            self.condition.notify_all()

    @contextmanager
    def gathered_state(self) -> Iterator[None]:
        self.flush()
        yield

    def scatter_state(self) -> None:
        self.flush()

    # --- waiting

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            self.condition.wait_for(lambda: self.failure is not None or condition())
            if self.failure is not None:
                raise self.failure

    def wait_for(self, variables: list[Variable]) -> None:
        """Before a forward that reads these variables."""
        if self.phase is Phase.STEPPED and (self.due or self.failure):
            self._wait(lambda: all(variable.owing == 0 for variable in variables))

    def flush(self) -> None:
        """Wait for everything that is under way."""
        if self.phase is Phase.STEPPED:
            self._wait(lambda: self.due == 0)
        elif self.phase is Phase.REDUCING:
            self.gradients_wanted()

    def gradients_wanted(self) -> None:
        """Somebody reads the gradients between backward and `step()`."""
        if self.phase is Phase.REDUCING:
            self._wait(lambda: self.unreduced == 0)

    def drop_gradients(self) -> None:
        """`zero_grad()` without a `step()`: what was reduced is of no use."""
        if self.phase is Phase.REDUCING:
            self.gradients_wanted()
            self.phase = Phase.IDLE
            self.due = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before


def unpack_values(content: Content) -> None:
    for variable, segment, view in content.pieces:
        variable.alias[segment.region].copy_(view)


def hand_back(content: Content) -> None:
    """Reduced gradients of variables that are no single view of a buffer."""
    for variable, segment, view in content.pieces:
        if variable.view is None and variable.target is not None:
            variable.target[segment.region].copy_(view)
