"""The script's `step()`: it closes an iteration for the script, and updates what has arrived."""

from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.engine_parts import EngineParts
from autosync.runtime.execution.iteration import Phase
from autosync.runtime.execution.pending_gradients import check_synchronized
from autosync.runtime.execution.script_state import ScriptState
from autosync.runtime.execution.step_turns import StepTurns


class OptimizerStep:
    """Of one optimizer, or of several. state: what the script has left of it."""

    def __init__(self, parts: EngineParts, state: ScriptState):
        self._parts = parts
        self._state = state
        self._variables = parts.records.variables
        self._buckets = parts.records.buckets
        self._iteration = parts.iteration
        self._monitor = parts.monitor
        self._streams = parts.streams
        self._all_whole = all(variable.whole for variable in parts.records.variables)
        self._last: dict[int, int] = {}

    def step(self, optimizer: Optimizer) -> None:
        """The `step()` of the script's optimizer, or of one of them."""
        self._monitor.check()
        with self._monitor.refusing():
            self._parts.storage.check_step()
        if self._parts.values is not None:
            self._parts.values.before_step()
        turns = self._parts.turns
        self._check_first(optimizer)
        if self._iteration.phase is not Phase.REDUCING:
            check_synchronized(self._variables)
            return
        if turns is not None and turns.has_taken(optimizer):  # and has cleared its gradients
            return
        self._last[id(optimizer)] = self._iteration.number
        if turns is None or (turns.together and turns.note(optimizer)):
            self._step()
        elif not turns.together:
            self._step_alone(turns, optimizer)

    def cleared(self, optimizer: Optimizer | None = None) -> None:
        """The script clears the gradients of an optimizer, or all: a `step()` on what is left
        updates nothing."""
        if optimizer is None:
            self._last.clear()
        else:
            self._last.pop(id(optimizer), None)

    def _check_first(self, optimizer: Optimizer) -> None:
        """Raises NotSupported where the gradients of this iteration are applied already, and not
        cleared since. Pending ones are gone from `parameter.grad` behind any step."""
        if self._last.get(id(optimizer)) != self._iteration.number:
            return
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if self._parts.gradients.pending or any(p.grad is not None for p in held):
            raise NotSupported(
                "optimizer.step() came a second time on the gradients of one backward pass: a plan "
                "applies them once.",
                thing="optimizer.step()",
                remedy="Call step() once behind each synchronized backward pass. To go further on "
                "the same batch, run forward and backward again, or raise the learning rate.",
            )

    def _step_alone(self, turns: StepTurns, optimizer: Optimizer) -> None:
        """Update what one of several optimizers holds; all sums are here."""
        updated = turns.take(optimizer)
        self._parts.gradients.take_for_step()
        self._parts.application.note_step()
        with self._monitor.updating(), self._streams.landing():
            self._parts.application.update_whole(updated, all_of_them=False)
            self._streams.set_last_event(updated)
        if turns.all_taken():
            with self._monitor.condition:
                self._iteration.phase = Phase.STEPPED
                self._iteration.values_arrived(self._iteration.take_updatable())
        self._finish_buffers()
        self._streams.wait_last_events(updated)

    def _step(self) -> None:
        with self._monitor.refusing():
            self._state.take()
        self._parts.gradients.take_for_step()
        self._parts.application.note_step()
        with self._monitor.condition:
            self._iteration.phase = Phase.STEPPED
            claimed = [bucket for bucket in self._buckets if self._iteration.claim(bucket)]
        with self._monitor.updating():
            for bucket in claimed:
                self._parts.queues.update_bucket(bucket)
            self._update_whole()
        for variable in self._parts.gradients.pending:
            variable.parameter.grad = None
        self._wait_for_values()
        self._finish_buffers()

    def _update_whole(self) -> None:
        self._monitor.wait(lambda: self._iteration.blocking_variables == 0)
        with self._monitor.condition:
            updatable = self._iteration.take_updatable()
        with self._streams.landing():
            every = self._all_whole and len(updatable) == len(self._variables)
            all_of_them = every and self._parts.turns is None
            self._parts.completion.update_whole(updatable, all_of_them)

    def _wait_for_values(self) -> None:
        """All but those that run into the next forward pass: they are owed."""
        owed = self._parts.waits.owed
        awaited = [v for v in self._variables if not v.deferred] + owed.unguarded
        self._monitor.wait(lambda: all(v.missing_values == 0 for v in awaited))
        self._streams.wait_last_events(awaited)
        owed.mark(of_a_device=self._streams.asynchronous)

    def _finish_buffers(self) -> None:
        if not self._streams.mode.threads:  # else a thread waits for the device: not here
            self._parts.waits.finish_buffers()
