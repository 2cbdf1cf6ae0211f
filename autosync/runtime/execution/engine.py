"""Takes a plan through the iterations of a training script.

An iteration opens with the first gradient of a backward pass; `step()` closes it for the script,
and what may run into the next forward pass ends behind it. One lock, the monitor's, guards all
state; the work itself (waiting, summing, updating) happens outside of it.

On a GPU this thread only asks for work. Device events keep its order: landings and updates are on a
stream of their own, which waits for the moment of `step()`, and the script's stream waits for the
last event of the variables that it goes on to read.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Condition
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import AutosyncError
from autosync.plan import Plan
from autosync.runtime.compression.powersgd import SavedErrors
from autosync.runtime.execution.backward_pass import BackwardPass
from autosync.runtime.execution.engine_parts import EngineParts
from autosync.runtime.execution.iteration import Phase
from autosync.runtime.execution.optimizer_step import OptimizerStep
from autosync.runtime.execution.script_state import ScriptState
from autosync.runtime.layout.records import VariableRecord, issue_order
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers
from autosync.runtime.updates.optimizer_state import ShardedOptimizerState, asks_for_state
from autosync.runtime.updates.twin_optimizer import held_state


@dataclass(slots=True)
class StateForm:
    """What `optimizer.state_dict()` gives where no rank holds all of a variable's state: the whole
    on every rank, on rank `to` alone, or this rank's parts."""

    in_parts: bool = False
    to: int | None = None


class Engine:
    """One attached plan at work: what hooks and frameworks call. is_blind: whether the forward pass
    does not say what it is about to read, so that `step()` waits for everything.

    optimizer: the script's, or several joined. control: a process group of all ranks for small
    exchanges.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        parts: EngineParts,
        state: ShardedOptimizerState,
        control: Any,
    ):
        self.optimizer = optimizer
        self.optimizer_class = type(optimizer)
        self.plan = plan
        self.variables = parts.records.variables
        self.buckets = parts.records.buckets
        self.messages = parts.records.messages
        self.state = state
        self.control = control
        self.streams = parts.streams
        self.iteration = parts.iteration
        self.monitor = parts.monitor
        self.completion = parts.completion
        self.gradients = parts.gradients
        self.turns = parts.turns
        self.owed = parts.waits.owed
        self.state_form = StateForm()
        self._state_has_begun = False
        self._parts = parts
        self.backward = BackwardPass(parts)
        self.script_state = ScriptState(state, self.flush, parts.monitor)
        self._optimizer_step = OptimizerStep(parts, self.script_state)
        self.is_blind: Callable[[], bool] = lambda: False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Engine":
        """A copied model keeps its hooks; they are of no effect on the copy."""
        return self

    @property
    def failure(self) -> AutosyncError | None:
        return self.monitor.failure

    @failure.setter
    def failure(self, error: AutosyncError) -> None:
        self.monitor.failure = error

    @property
    def condition(self) -> Condition:
        return self.monitor.condition

    @property
    def phase(self) -> Phase:
        return self.iteration.phase

    @property
    def synchronizing(self) -> bool:
        """False inside `no_sync`."""
        return self.backward.synchronizing

    def optimizer_class_of(self, optimizer: Optimizer) -> type[Optimizer]:
        """The class that an optimizer of the script had before it followed the plan."""
        if isinstance(self.optimizer, JoinedOptimizers):
            return self.optimizer.classes[self.optimizer.optimizers.index(optimizer)]
        return self.optimizer_class

    def start(self) -> None:
        """Start the threads of every queue of messages."""
        self._parts.queues.start(self.messages[index] for index in issue_order(self.plan))
        if self._parts.values is not None:
            self._parts.values.start()

    def close(self) -> None:
        """Stop every thread. Call `flush` before, unless the engine failed."""
        self._parts.queues.close()
        self._parts.buffers.close()
        if self._parts.values is not None:
            self._parts.values.close()

    # --- the script's forward and backward pass

    def begin_forward(self) -> None:
        self.backward.begin_forward()

    def before_buffers(self) -> None:
        self.backward.before_buffers()

    def expect_end(self) -> None:
        self.backward.expect_end()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside add to the local gradients only."""
        return self.backward.no_sync()

    # --- its optimizer

    def step(self, optimizer: Optimizer) -> None:
        self._optimizer_step.step(optimizer)
        if self.phase is Phase.STEPPED and self.is_blind():
            self.flush()

    def cleared(self, optimizer: Optimizer | None = None) -> None:
        """The script's `zero_grad()` of an optimizer, or of the model."""
        self._optimizer_step.cleared(optimizer)

    def drop_gradients(self) -> None:
        """`zero_grad()` without a `step()`: what was reduced is of no use. Not where several
        optimizers step by themselves: the others may still."""
        alone = self.turns is not None and not self.turns.together
        if self.phase is Phase.REDUCING and not alone:
            self.flush()
            self.gradients.make_plain()
            self.iteration.phase = Phase.IDLE
            self.iteration.outdated_variables = 0

    def begin_state(self, optimizer: Optimizer) -> bool:
        """Whether a `step()` only asks for the state of an optimizer that has none, as
        torch.distributed.checkpoint.state_dict does; then it is made, without a message."""
        if self.phase is Phase.REDUCING or not asks_for_state(optimizer):
            return False
        self.flush()
        self.script_state.take()
        self.state.begin(optimizer, self.optimizer_class_of(optimizer))
        self._state_has_begun = True
        return True

    @contextmanager
    def gathered_state(self) -> Iterator[None]:
        """The optimizer holds the state of every variable. A collective where updates are owned or
        sharded."""
        self.flush()
        self.script_state.take()
        with self.monitor.exchange("the gathering of the optimizer's state"):
            gathered = self.state.gather("optimizer.state_dict()", self.state_form.to)
        try:
            yield
        finally:
            for variable in gathered:
                held_state(self.optimizer).pop(variable.parameter, None)

    def saved_errors(self, optimizer: Optimizer) -> SavedErrors:
        """What a checkpoint of an optimizer keeps of PowerSGD, of variables that have a state: for
        torch's optimizers make none where they find an entry. A collective under PowerSGD."""
        with self.monitor.exchange("the gathering of PowerSGD's errors"):
            errors = self.state.gather_errors(optimizer)
        held = held_state(optimizer)
        if not held:  # it keeps none for any variable
            return errors if self._state_has_begun or self.iteration.number >= 0 else {}
        return {parameter: entry for parameter, entry in errors.items() if parameter in held}

    def take_loaded(
        self,
        optimizer: Optimizer,
        parts: dict[Tensor, dict[str, Any]] | None,
        errors: SavedErrors,
    ) -> None:
        """The script has loaded a state: all of it into the optimizer, or what is split as the
        parts that this rank holds."""
        if parts is None:
            self.state.take_parts()
        else:
            self.state.load_parts(optimizer, parts)
        self.state.restore_errors(optimizer, errors)
        self.script_state.loaded()
        self._state_has_begun = True

    # --- what reads its model

    def wait_for(self, variables: list[VariableRecord]) -> None:
        """Before a forward that reads these variables."""
        self._parts.waits.wait_for(variables)

    def before_load(self) -> None:
        """The script is about to load values into the model, or into a module of it."""
        self._parts.waits.flush()
        if self._parts.values is not None:
            self._parts.values.before_load()

    def flush(self) -> None:
        """Wait for every message and update in flight, module buffers included."""
        self._parts.waits.flush()
