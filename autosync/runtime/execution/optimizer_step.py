"""The script's `step()`: it closes an iteration for the script, and runs the updates whose sums
have arrived.

A model may have several optimizers. If every replica updates whole variables within `step()`,
each optimizer updates its own at its own `step()`, in any order and number, as under torch's DDP.
If updates are owned, sharded or continue during the next forward pass, one bucket may hold
variables of several. Then each `step()` is recorded, and the last one runs all updates. Changes
that a script could make unnoticed between them are refused.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.completion import Phase
from autosync.runtime.execution.pending import plain_gradient
from autosync.runtime.execution.script_gradients import check_synchronized
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.updates.optimizers import JoinedOptimizers, own_class

if TYPE_CHECKING:
    from autosync.runtime.execution.engine import Engine


class OptimizerStep:
    """Of one optimizer, or of several. together: the last `step()` of an iteration runs all
    updates."""

    def __init__(self, engine: "Engine"):
        joined = engine.optimizer if isinstance(engine.optimizer, JoinedOptimizers) else None
        self.together = joined is None or bool(engine.gradients.pending)
        self._engine = engine
        self._joined = joined
        self._optimizers = joined.optimizers if joined else (engine.optimizer,)
        self._all_whole = all(variable.whole for variable in engine.variables)
        self._is_split = any(not v.whole or v.held_by_some for v in engine.variables)
        self._last: dict[int, int] = {}
        self._stepped: set[int] = set()
        self._local: dict[VariableRecord, Tensor | None] = {}
        self._noted: list[tuple[VariableRecord, Tensor | None]] = []
        self._postponed: list[tuple[Optimizer, bool]] = []
        owners = joined.owners() if joined else []
        self._variables = {
            id(optimizer): [v for v in engine.variables if v.group >= 0 and owners[v.group] == n]
            for n, optimizer in enumerate(joined.optimizers if joined else ())
        }

    def begin(self) -> None:
        """A synchronized backward pass begins."""
        self._stepped.clear()
        self._noted.clear()
        self._local.clear()

    def accumulated(self, variable: VariableRecord) -> None:
        """A pass under `no_sync` has added to this gradient. Behind the synchronized pass that is
        what other ranks do not have."""
        if self._engine.iteration.phase is Phase.REDUCING:
            self._local[variable] = plain_gradient(variable)

    def step(self, optimizer: Optimizer) -> None:
        """The `step()` of the script's optimizer, or of one of them."""
        engine = self._engine
        engine.monitor.check()
        with engine.monitor.refusing():
            engine.storage.check_step()
        if engine.values is not None:
            engine.values.before_step()
        kept = engine.script_state.is_kept()
        self._check_first(optimizer)
        if engine.iteration.phase is not Phase.REDUCING:
            check_synchronized(engine.variables)
        elif id(optimizer) not in self._stepped:  # else it has cleared its gradients
            self._check_local(optimizer)
            if self._joined is None:
                replaced = engine.gradients.replaced()  # a step that this refuses may come again
                self._last[id(optimizer)] = engine.iteration.number
                self._step(replaced)
            else:
                self._last[id(optimizer)] = engine.iteration.number
                if not self.together:
                    self._step_alone(optimizer)
                elif self._note(self._joined, optimizer):
                    self._step(engine.gradients.replaced())
        if engine.iteration.phase is Phase.STEPPED and (kept or engine.is_blind()):
            engine.flush()

    def clear(self, optimizer: Optimizer, set_to_none: bool) -> None:
        """The script's `zero_grad()`. It waits for the `step()` of the others where they are to
        come.

        Raises:
            NotSupported: it has not stepped, while others have.
        """
        self.cleared(optimizer)
        if self._waits_for_others():
            if id(optimizer) not in self._stepped:
                kind = own_class(optimizer).__name__
                raise _not_together(f"zero_grad() of optimizer {kind} came before its step()", kind)
            self._postponed.append((optimizer, set_to_none))
            return
        if self._joined is None or self.together:  # else the others may still step
            self._engine.drop_gradients()
        clear_gradients(optimizer, set_to_none)

    def cleared(self, optimizer: Optimizer | None = None) -> None:
        """The script clears the gradients of an optimizer, or all: a `step()` on what is left
        updates nothing."""
        if optimizer is None:
            self._last.clear()
            self._local.clear()
            return
        self._last.pop(id(optimizer), None)
        for variable in self._held(optimizer) if self._local else ():
            self._local.pop(variable, None)

    def clear_model(self) -> None:
        """The script's `model.zero_grad()`, which goes on with the gradients of all. Those that no
        rank can show are dropped, as by `clear`."""
        self.cleared()
        self._engine.gradients.cleared = self._engine.iteration.number
        if self._is_split and not self._waits_for_others():
            self._engine.drop_gradients()

    def check_finished(self) -> None:
        """Before anything that reads values: every noted `step()` has run.

        Raises:
            NotSupported: an optimizer has not stepped, while others have.
        """
        if self._waits_for_others() and self._engine.iteration.phase is Phase.REDUCING:
            waiting = next(o for o in self._optimizers if id(o) not in self._stepped)
            kind = own_class(waiting).__name__
            raise _not_together(f"the model went on before optimizer {kind} had stepped", kind)

    def _waits_for_others(self) -> bool:
        return self.together and 0 < len(self._stepped) < len(self._optimizers)

    def _held(self, optimizer: Optimizer) -> list[VariableRecord]:
        return self._variables[id(optimizer)] if self._joined else self._engine.variables

    def _check_local(self, optimizer: Optimizer) -> None:
        """Raises NotSupported where a gradient that it applies is not the same on every rank."""
        held = self._held(optimizer) if self._local else []
        local = (v for v in held if v in self._local and plain_gradient(v) is self._local[v])
        check_synchronized(local)

    def _check_first(self, optimizer: Optimizer) -> None:
        """Raises NotSupported where the gradients of this iteration are applied already, and not
        cleared since. Pending ones are gone from `parameter.grad` behind any step."""
        if self._last.get(id(optimizer)) != self._engine.iteration.number:
            return
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if self._engine.gradients.pending or any(p.grad is not None for p in held):
            raise NotSupported(
                "optimizer.step() came a second time on the gradients of one backward pass: a plan "
                "applies them once.",
                thing="optimizer.step()",
                remedy="Call step() once behind each synchronized backward pass. To go further on "
                "the same batch, run forward and backward again, or raise the learning rate.",
            )

    def _note(self, joined: JoinedOptimizers, optimizer: Optimizer) -> bool:
        """Record the `step()` of one of several optimizers. Returns whether it is the last.

        Raises:
            NotSupported: a gradient was cleared or replaced since another's.
        """
        self._stepped.add(id(optimizer))
        joined.note(optimizer)
        if self._waits_for_others():
            held = self._variables[id(optimizer)]
            self._noted += [(variable, plain_gradient(variable)) for variable in held]
            return False
        for variable, gradient in self._noted:
            if plain_gradient(variable) is not gradient:
                raise _not_together(
                    f"the gradient of {variable.name!r} was cleared or replaced between the "
                    "step() of its optimizer and those of the others",
                    variable.name,
                )
        return True

    def _step(self, replaced: list[VariableRecord]) -> None:
        engine = self._engine
        engine.script_state.note_step()
        engine.gradients.take_for_step(replaced)
        engine.completion.note_step()
        with engine.monitor.condition:
            engine.iteration.phase = Phase.STEPPED
            engine.monitor.stepped = engine.iteration.number
            claimed = [bucket for bucket in engine.buckets if engine.iteration.claim(bucket)]
        with engine.monitor.updating():
            for bucket in claimed:
                engine.queues.update_bucket(bucket)
            self._update_whole()
        for variable in engine.gradients.pending:
            variable.parameter.grad = None
        self._wait_for_values()
        self._finish_buffers()
        postponed, self._postponed = self._postponed, []
        for optimizer, set_to_none in postponed:
            clear_gradients(optimizer, set_to_none)

    def _update_whole(self) -> None:
        engine = self._engine
        engine.monitor.wait(lambda: engine.iteration.blocking_variables == 0)
        with engine.monitor.condition:
            updatable = engine.iteration.take_updatable()
        with engine.streams.completing():
            every = self._all_whole and len(updatable) == len(engine.variables)
            engine.completion.update_whole(updatable, every and self._joined is None)
            engine.completion.updated(updatable)

    def _wait_for_values(self) -> None:
        """All but those that may continue during the next forward pass, which are pending."""
        engine, pending = self._engine, self._engine.pending_parameters
        awaited = [v for v in engine.variables if not v.deferred] + pending.unguarded
        engine.monitor.wait(lambda: all(v.missing_values == 0 for v in awaited))
        engine.streams.wait_last_events(awaited)
        pending.mark(of_a_device=engine.streams.asynchronous)

    def _step_alone(self, optimizer: Optimizer) -> None:
        """Update what one of several optimizers holds; all sums are here."""
        engine = self._engine
        self._stepped.add(id(optimizer))
        updated = self._variables[id(optimizer)]
        engine.gradients.take_for_step(engine.gradients.replaced())
        engine.completion.note_step()
        with engine.monitor.updating(), engine.streams.completing():
            engine.completion.update_whole(updated, all_of_them=False)
            engine.streams.set_last_event(updated)
        if len(self._stepped) == len(self._optimizers):
            with engine.monitor.condition:
                engine.iteration.phase = Phase.STEPPED
                engine.iteration.values_arrived(engine.iteration.take_updatable())
        self._finish_buffers()
        engine.streams.wait_last_events(updated)

    def _finish_buffers(self) -> None:
        if not self._engine.streams.mode.threads:  # else a thread waits for the device: not here
            self._engine.finish_buffers()


def clear_gradients(optimizer: Optimizer, set_to_none: bool) -> None:
    """As `zero_grad()` of a plain optimizer does; no value of a parameter is read."""
    with torch._C.DisableTorchFunctionSubclass():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.requires_grad_(False).zero_()


def _not_together(what: str, value: str) -> NotSupported:
    return NotSupported(
        f"{what}: under this plan all optimizers of a model step after each synchronized backward "
        "pass, and the last step() runs their updates.",
        thing="optimizer",
        value=value,
        remedy="Call every optimizer's step() behind the backward pass, or use a strategy of "
        "all-reduces without owned or sharded updates and without overlap of the forward pass.",
    )
