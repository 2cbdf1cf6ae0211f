"""Gradients in the script's hands, between the end of backward and `step()`: which are pending, and
what clipping and a GradScaler do to them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.iteration import IterationState, Phase
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.pending_gradients import (
    any_left,
    incomplete_gradient,
    make_pending,
    make_plain,
    take_for_step,
)
from autosync.runtime.execution.step_turns import scaler_of_several
from autosync.runtime.layout.records import Records, VariableRecord
from autosync.runtime.updates.clipping import agree_on_infinity, clip_gradients, loss_scale
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers
from autosync.runtime.updates.scaler_gradients import show_gradients, take_back


class ScriptGradients:
    """The holder of pending gradients; see `pending_gradients.GradientHolder`.

    pending: variables whose gradients are not complete when backward returns. scaler_looked: a
    GradScaler has seen the gradients of this iteration. control: a process group of all ranks, in
    host memory. sum_over_ranks: see `clip_gradients`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        records: Records,
        iteration: IterationState,
        monitor: Monitor,
        streams: Streams,
        control: Any,
        sum_over_ranks: Callable[[Tensor], None],
        max_grad_norm: float | None,
    ):
        self.pending = [v for v in records.variables if v.deferred or v.apart or not v.whole]
        self.scaler_looked = False
        self._grad_norm: float | Tensor = 0.0
        self._optimizer = optimizer
        self._variables = list(records.variables)
        self._buckets = list(records.buckets)
        self._placed = records.placed
        self._iteration = iteration
        self._monitor = monitor
        self._streams = streams
        self._control = control
        self._sum_over_ranks = sum_over_ranks
        self._max_grad_norm = max_grad_norm

    @property
    def grad_norm(self) -> float:
        """Before the last clipping in `step()`. A GPU is waited for."""
        return float(self._grad_norm)

    def any_left(self) -> bool:
        """Whether a gradient of the backward pass before is still there, read or not."""
        return any_left(self.pending)

    def make_gradients_pending(self, landed: bool = False) -> None:
        """landed: those, too, whose sums are here."""
        with self._monitor.condition:  # a landing thread may show a sparse sum
            kept = (v for v in self.pending if v.apart or v.missing_sums or not v.whole)
            make_pending(self, self.pending if landed else kept)

    def make_plain(self) -> None:
        make_plain(self.pending)

    def complete(self, variable: VariableRecord) -> None:
        """Wait until `parameter.grad` is the global average, a plain tensor.

        Raises:
            NotSupported: no rank holds all of it.
        """
        if self._iteration.phase is not Phase.REDUCING:  # held since an earlier iteration
            return
        if not variable.whole or variable.apart:
            raise incomplete_gradient(variable, "was read between backward and step()")
        self._monitor.wait(lambda: variable.missing_sums == 0)
        self._streams.wait_last_events([variable])
        make_plain([variable])

    def show_gradients(self) -> None:
        """A GradScaler inspects and unscales the gradients. A collective where updates are owned
        or sharded: all ranks must find the same infinities."""
        if self._iteration.phase is not Phase.REDUCING:
            return
        if isinstance(self._optimizer, JoinedOptimizers):
            raise scaler_of_several()
        for variable in self.pending:
            if variable.apart:
                raise incomplete_gradient(variable, "was scaled by a GradScaler")
        self._wait_for_sums()
        make_plain(self.pending)
        if self.scaler_looked:
            return
        self.scaler_looked = True
        for bucket in self._buckets:
            if not bucket.whole:
                show_gradients(bucket)
        if any(bucket.values_travel for bucket in self._buckets):
            with self._monitor.exchange("the search for infinities"):
                agree_on_infinity(self._variables, self._buckets, self._control)

    def take_for_step(self) -> None:
        """Gradients are as the script leaves them to `step()`: those that it replaced count, and
        under clipping or a scaler every reduction ends before any update.

        Raises:
            NotSupported: it replaced one that no rank holds.
        """
        replaced = take_for_step(self.pending)
        self._monitor.wait(lambda: all(variable.missing_sums == 0 for variable in replaced))
        for variable in replaced:  # the script's own tensors, which an update reads later
            if variable.parameter.grad is not None:
                self._streams.keep_for_landing(variable.parameter.grad)
        if not (self.scaler_looked or self._max_grad_norm):
            return
        self._wait_for_sums()
        if self.scaler_looked:
            for bucket in self._buckets:
                if bucket.update:
                    take_back(bucket)
        if self._max_grad_norm:
            self._clip(self._max_grad_norm)

    def clip_now(self, max_norm: float) -> Tensor:
        """The script clips all gradients between backward and `step()`. Returns the norm before.
        A collective where updates are owned or sharded."""
        self._wait_for_sums()
        make_plain(self.pending)
        shown = [b for b in self._buckets if self.scaler_looked and b.update and not b.whole]
        for bucket in shown:
            take_back(bucket)
        with self._monitor.exchange("clipping by the global norm"):
            norm = self._clip_gradients(max_norm)
        for bucket in shown:
            show_gradients(bucket)
        self.make_gradients_pending()
        return norm

    def _clip(self, max_grad_norm: float) -> None:
        with self._monitor.exchange("clipping by the global norm"):
            scale = loss_scale(self._optimizer)
            limit = max_grad_norm * scale
            norm = self._clip_gradients(limit)
            self._grad_norm = norm / scale

    def _clip_gradients(self, max_norm: float | Tensor) -> Tensor:
        return clip_gradients(
            self._variables, self._buckets, self._sum_over_ranks, max_norm, self._placed
        )

    def _wait_for_sums(self) -> None:
        self._monitor.wait(lambda: self._iteration.unreduced_buckets == 0)
        self._streams.wait_last_events(self._variables)
