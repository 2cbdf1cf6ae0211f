"""The script's access to gradients between the end of backward and `step()`: which are pending, and
the effects of clipping and a GradScaler."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autosync.errors import NotSupported
from autosync.runtime.compression.rows import sparse_tensor
from autosync.runtime.execution.completion import Phase
from autosync.runtime.execution.pending import PendingGradient, plain_gradient
from autosync.runtime.layout.records import VariableRecord
from autosync.runtime.transport.base import Wait
from autosync.runtime.updates.clipping import (
    agree_on_infinity,
    clip_gradients,
    loss_scale,
    show_gradients,
    take_back,
)
from autosync.runtime.updates.optimizers import JoinedOptimizers

if TYPE_CHECKING:
    from autosync.runtime.execution.engine import Engine


class ScriptGradients:
    """pending: variables whose gradients are not complete when backward returns. sum_over_ranks:
    see `small_sum`. scaler_looked: a GradScaler has seen the gradients of this iteration. cleared:
    the last iteration whose gradients `model.zero_grad()` has cleared."""

    def __init__(
        self,
        engine: "Engine",
        sum_over_ranks: Callable[[Tensor, Wait], None],
        max_grad_norm: float | None,
    ):
        self.pending = [v for v in engine.variables if v.deferred or v.held_by_some or not v.whole]
        self.scaler_looked = False
        self.cleared = -1
        self._grad_norm: float | Tensor = 0.0
        self._engine = engine
        self._sum_over_ranks = sum_over_ranks
        self._max_grad_norm = max_grad_norm

    @property
    def grad_norm(self) -> float:
        """Before the last clipping in `step()`. A GPU is waited for."""
        return float(self._grad_norm)

    @property
    def iteration(self) -> int:
        """Whose gradients they are."""
        return self._engine.iteration.number

    def any_left(self) -> bool:
        """Whether a gradient of the previous backward pass still exists, read or not. One that the
        model has set to zero was waited for, and adds up."""
        pairs = [(variable.parameter.grad, variable) for variable in self.pending]
        return any(
            isinstance(gradient, PendingGradient)
            or (gradient is variable.target and self.cleared != self.iteration)
            for gradient, variable in pairs
            if gradient is not None
        )

    def make_pending(self, completed: bool = False) -> None:
        """Where gradients are not complete. completed: those, too, whose sums are here. A variable
        without a gradient gets zeros, so that every rank shows the same variables."""
        with self._engine.monitor.condition:  # a completion thread may show a sparse sum
            for variable in self.pending:
                if (
                    completed
                    or variable.held_by_some
                    or variable.missing_sums
                    or not variable.whole
                ):
                    gradient = variable.parameter.grad
                    if gradient is None:
                        gradient = _zeros(variable)
                        variable.parameter.grad = gradient
                    variable.parameter.grad = PendingGradient.around(self, variable, gradient)

    def make_plain(self) -> None:
        with self._engine.monitor.condition:
            for variable in self.pending:
                variable.parameter.grad = plain_gradient(variable)

    def complete(self, variable: VariableRecord, iteration: int) -> None:
        """Wait until the gradient of an iteration is the global average: a plain tensor in
        `parameter.grad`, or what the script has kept of it behind `step()`.

        Raises:
            NotSupported: no rank holds all of it, or its memory has been used since.
        """
        engine = self._engine
        is_last = iteration == self.iteration
        reducing = is_last and engine.iteration.phase is Phase.REDUCING
        if not variable.whole or variable.held_by_some:
            when = "between backward and step()" if reducing else "behind its step()"
            raise _incomplete(variable, f"was read {when}")
        if not reducing and (not is_last or any(bucket.ranges for bucket in variable.buckets)):
            raise _used_since(variable)
        if not reducing:
            engine.wait_for([variable])  # for an update that reads it, too
            return
        engine.monitor.wait(lambda: variable.missing_sums == 0)
        engine.streams.wait_last_events([variable])
        variable.parameter.grad = plain_gradient(variable)

    def show_to_scaler(self) -> None:
        """A GradScaler inspects and unscales the gradients: put the sums that this rank applies
        into `parameter.grad`, as plain tensors. A collective where updates are owned or sharded:
        all ranks must find the same infinities."""
        engine = self._engine
        if engine.iteration.phase is not Phase.REDUCING:
            return
        if isinstance(engine.optimizer, JoinedOptimizers):
            raise _scaler_of_several()
        for variable in self.pending:
            if variable.held_by_some:
                raise _incomplete(variable, "was scaled by a GradScaler")
        self._wait_for_sums()
        self.make_plain()
        if self.scaler_looked:
            return
        self.scaler_looked = True
        for bucket in engine.buckets:
            if not bucket.whole:
                show_gradients(bucket)
        if any(bucket.values_travel for bucket in engine.buckets):
            with engine.monitor.exchange("the search for infinities"):
                wait = self._wait_for_ranks
                agree_on_infinity(engine.variables, engine.buckets, engine.control, wait)

    def replaced(self) -> list[VariableRecord]:
        """Pending variables in whose gradients' place the script has put its own. Changes nothing.

        Raises:
            NotSupported: no rank holds one of them.
        """
        found = []
        with self._engine.monitor.condition:  # a completion thread may show a sparse sum
            for variable in self.pending:
                gradient = variable.parameter.grad
                if isinstance(gradient, PendingGradient):
                    continue
                is_own = gradient is not variable.target
                if not variable.whole or (is_own and variable.held_by_some):
                    raise _incomplete(variable, "was replaced before step()")
                if is_own:
                    found.append(variable)
        return found

    def take_for_step(self, replaced: list[VariableRecord]) -> None:
        """Gradients are as the script leaves them to `step()`: those that it replaced count, on
        every rank alike, and under clipping or a scaler every reduction ends before any update.
        replaced: what `replaced()` has found."""
        engine = self._engine
        self.make_plain()
        engine.monitor.wait(lambda: all(variable.missing_sums == 0 for variable in replaced))
        for variable in replaced:  # the script's own tensors, which an update reads later
            if variable.parameter.grad is not None:
                engine.streams.keep_for_completion(variable.parameter.grad)
        if not (self.scaler_looked or self._max_grad_norm):
            return
        self._wait_for_sums()
        if self.scaler_looked:
            for bucket in engine.buckets:
                if bucket.update:
                    take_back(bucket)
        if self._max_grad_norm:
            scale = loss_scale(engine.optimizer)
            self._grad_norm = self._clip(self._max_grad_norm * scale) / scale

    def clip_now(self, max_norm: float) -> Tensor:
        """The script clips all gradients between backward and `step()`. Returns the norm before
        clipping. A collective if updates are owned or sharded."""
        self._wait_for_sums()
        self.make_plain()
        buckets = self._engine.buckets
        shown = [b for b in buckets if self.scaler_looked and b.update and not b.whole]
        for bucket in shown:
            take_back(bucket)
        norm = self._clip(max_norm)
        for bucket in shown:
            show_gradients(bucket)
        self.make_pending()
        return norm

    def had_by_none(self, variables: list[VariableRecord]) -> frozenset[int]:
        """Indices of those whose gradient of this iteration is zero, because no rank has one. Waits
        for the sums."""
        self._wait_for_sums()
        with self._engine.monitor.exchange("the count of unused variables"):
            return self._engine.completion.unused_by_all(variables)

    def _clip(self, max_norm: float | Tensor) -> Tensor:
        engine = self._engine
        with engine.monitor.exchange("clipping by the global norm"):
            return clip_gradients(
                engine.variables,
                engine.buckets,
                lambda squares: self._sum_over_ranks(squares, self._wait_for_ranks),
                max_norm,
                engine.records.model_is_divided,
            )

    def _wait_for_ranks(self, work: Any) -> None:
        """For an exchange about the gradients of this iteration: a rank that has dropped them never
        comes."""
        self._engine.monitor.wait_for_work(work, self.iteration)

    def _wait_for_sums(self) -> None:
        engine = self._engine
        engine.monitor.wait(lambda: engine.iteration.unreduced_buckets == 0)
        engine.streams.wait_last_events(engine.variables)


def check_synchronized(variables: Iterable[VariableRecord]) -> None:
    """At a `step()` that no synchronized backward pass came before.

    Raises:
        NotSupported: there is a gradient all the same.
    """
    for variable in variables:
        if variable.parameter.grad is not None:
            raise NotSupported(
                f"optimizer.step() found a gradient of {variable.name!r} that no backward "
                "pass has synchronized.",
                thing=f"variable {variable.name}",
                remedy="Run the last backward pass before step() outside of no_sync().",
            )


def _zeros(variable: VariableRecord) -> Tensor:
    table = variable.alias
    if not any(bucket.ranges for bucket in variable.buckets):
        return torch.zeros_like(table)
    rows = torch.empty(0, dtype=torch.int64, device=table.device)
    empty = table.new_empty(0, *table.shape[1:])
    return sparse_tensor((rows, empty), tuple(table.shape), coalesced=True)


def _incomplete(variable: VariableRecord, what: str) -> NotSupported:
    if variable.held_by_some:
        return NotSupported(
            f"the gradient of {variable.name!r} {what}, but only the ranks that its module is "
            "placed on have it: a norm or a scale over all gradients would differ from rank "
            "to rank.",
            thing=f"variable {variable.name}.grad",
            remedy="Clip by max_grad_norm= of autosync.distribute or by autosync.clip_grad_norm_; "
            "train without a GradScaler (bfloat16 needs none); or use a strategy without placed "
            "modules.",
        )
    return NotSupported(
        f"the gradient of {variable.name!r} {what}, but no rank holds all of it: the strategy "
        "updates parts of variables on the ranks that own them.",
        thing=f"variable {variable.name}.grad",
        remedy="Clip by max_grad_norm= of autosync.distribute or by autosync.clip_grad_norm_, or "
        "use a strategy without owned or sharded updates.",
    )


def _used_since(variable: VariableRecord) -> NotSupported:
    return NotSupported(
        f"a gradient of {variable.name!r} that the script has kept was read when its iteration had "
        "ended, and its memory has been used since.",
        thing=f"variable {variable.name}.grad",
        remedy="Keep a copy that is taken between backward and step(): `p.grad.clone()`.",
    )


def _scaler_of_several() -> NotSupported:
    return NotSupported(
        "a GradScaler, which lets one optimizer step and another not, met several optimizers under "
        "a plan whose last step() runs all updates.",
        thing="GradScaler",
        remedy="Use one optimizer with several parameter groups, bfloat16 without a scaler, or a "
        "strategy of all-reduces without owned or sharded updates and without overlap of the "
        "forward pass.",
    )
