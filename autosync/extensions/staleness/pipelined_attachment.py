"""Puts a plan of pipelined all-reduces on a model and its optimizer, and takes it off again."""

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.errors import AutosyncError, NotSupported
from autosync.extensions.staleness.gradient_pipeline import KEY, GradientPipeline
from autosync.extensions.staleness.lagging_groups import LaggingJob, met_ranks
from autosync.extensions.staleness.scaler_refusal import check_unscaled, mark_for_scalers
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.execution.model_checks import (
    inside_another,
    unknown_end,
    within_backward,
)
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.pending import tensors_in
from autosync.runtime.hooks.model_hooks import (
    ModelMethods,
    PlainCopies,
    Removable,
    check_not_in_ddp,
)
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.hooks.synchronized_optimizer import wrap_steps
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups


@dataclass(slots=True)
class PipelinedAttachment:
    """A plan of staleness s at work. When `backward()` returns, `parameter.grad` is the average
    gradient of the iteration s before, or None in the first s iterations, so that whatever the
    script does to gradients before `step()` is done to what is applied.

    given: the optimizer as the script gave it. control: a process group of all ranks for small
    exchanges. synchronizing: False inside `no_sync`.
    end_is_expected: its backward pass calls back.
    """

    model: nn.Module
    given: Optimizer
    pipeline: GradientPipeline
    parameters: list[nn.Parameter]
    buffers: BufferBroadcast
    monitor: Monitor
    control: Any
    groups: Groups
    max_grad_norm: float | None
    handles: list[Removable] = field(default_factory=list)
    synchronizing: bool = True
    stepped: bool = True
    end_is_expected: bool = False

    @property
    def failure(self) -> AutosyncError | None:
        return self.monitor.failure

    def stop(self, error: AutosyncError) -> None:
        self.monitor.stop(error)

    def flush(self) -> None:
        """Nothing is under way any more; what no step has applied is kept."""
        self.monitor.check()
        self.pipeline.wait()
        self.finish_buffers()

    def detach(self, keep_state: bool = True) -> None:
        """Apply what is left, oldest first, so that no gradient is lost; then leave model and
        optimizer as they were. A collective; after a failure nothing is waited for, and what is
        left is lost. keep_state: False drops it in any case."""
        sound = self.monitor.failure is None
        if sound:
            self.flush()
            with suppress(RuntimeError):  # nothing is in flight here: a peer may go first
                self.control.barrier(dist.BarrierOptions()).wait()
        self.undo()
        while sound and keep_state and (sums := self.pipeline.rest()) is not None:
            self._give(sums)
            self.given.step()
        for parameter in self.parameters:
            parameter.grad = None
        self.groups.close()

    def undo(self) -> None:
        """Take back what was done to model and optimizer."""
        atexit.unregister(self.at_exit)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        ATTACHED.plans.pop(id(self.model), None)

    def at_exit(self) -> None:
        """A message that outlives the interpreter would abort the process."""
        with suppress(Exception):  # a peer may have gone
            self.flush()
        self.groups.close()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before

    def gradient_hook(self, variable: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if not self.synchronizing:
                return
            if not self.pipeline.filling:
                self._begin()
            with self.monitor.refusing():
                self.pipeline.arrive(variable)

        return hook

    def _begin(self) -> None:
        self.monitor.check()
        with self.monitor.refusing():
            if not self.end_is_expected and inside_another():
                raise unknown_end()
        with self.monitor.reporting("backward()"):
            self._check_stepped()
        self.pipeline.begin()
        self.expect_end()

    def _check_stepped(self) -> None:
        if not self.stepped:
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )

    def expect_end(self, *_: Any) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs ask
        first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self.end_is_expected:
            self.end_is_expected = True
            Autograd._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.end_is_expected = False
        if not self.pipeline.filling:  # it reached no variable
            return
        with self.monitor.refusing():
            self.pipeline.end()
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self.buffers.start(self.monitor.wait_for_work)
        self.stepped = False
        self._give(self.pipeline.due())

    def _give(self, sums: list[Tensor] | None) -> None:
        for variable, parameter in enumerate(self.parameters):
            parameter.grad = None if sums is None else sums[variable]
        if sums is not None and self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)

    def note_step(self, *_: Any) -> None:
        self.stepped = True
        self.finish_buffers()

    def check_step(self, *_: Any) -> None:
        self.monitor.check()

    def save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, KEY: self.pipeline.saved()}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.pipeline.load(state.get(KEY, []))
        return {name: value for name, value in state.items() if name != KEY}

    def begin_forward(self, module: nn.Module, *_: Any) -> None:
        if module is not self.model:  # a copy of the model
            return
        self.monitor.check()
        with self.monitor.reporting("model()"):
            check_not_in_ddp(self.model)
        if not within_backward():
            self.end_is_expected = False
            self.finish_buffers()

    def before_buffers(self) -> None:
        """A module is about to read its buffers."""
        if not within_backward():
            self.finish_buffers()

    def end_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The outputs of a training forward pass ask for the end of their backward pass."""
        trains = torch.is_grad_enabled() and self.model.training and self.synchronizing
        if module is not self.model or not trains or within_backward():
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self.expect_end)

    def finish_buffers(self) -> None:
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self.buffers.finish(self.monitor.wait_for_work)


def attach_pipelined(job: LaggingJob) -> PipelinedAttachment:
    """As `attachment.attach`, for a plan that applies gradients later. A collective over the
    process group.

    Raises:
        NotSupported: the plan has messages that are no plain all-reduces between all ranks, the
            model is not in host memory, or a gradient is sparse.
    """
    with met_ranks(job) as met:
        monitor = Monitor(met.all.close, state_is_split=False, refusals=met.meeting.refusals)
        share = job.plan.shares[job.group.rank()]
        made = PipelinedAttachment(
            job.model,
            job.optimizer,
            GradientPipeline(job.plan, job.names, met.parameters, met.gradients, share, monitor),
            met.parameters,
            met.buffers,
            monitor,
            met.meeting.control,
            met.all,
            job.max_grad_norm,
        )
        met.undo.callback(made.undo)
        _install(made)
    return made


def _install(made: PipelinedAttachment) -> None:
    model, optimizer = made.model, made.given
    guard = CoverageGuard(model, [optimizer], made.parameters)
    made.handles += [*guard.watch_steps(), guard.watch_others(), PlainCopies(model, made.flush)]
    made.handles.append(wrap_steps(optimizer, lambda: made.monitor.reporting("optimizer.step()")))
    for variable, parameter in enumerate(made.parameters):
        hook = made.gradient_hook(variable)
        made.handles.append(parameter.register_post_accumulate_grad_hook(hook))
    made.handles += [
        optimizer.register_step_pre_hook(made.check_step),
        mark_for_scalers(optimizer),
        optimizer.register_step_pre_hook(check_unscaled),
        optimizer.register_step_post_hook(made.note_step),
        optimizer.register_state_dict_post_hook(made.save),
        optimizer.register_load_state_dict_pre_hook(made.load),
        model.register_forward_pre_hook(opaque(lambda *given: made.begin_forward(*given))),
        model.register_forward_hook(opaque(lambda *given: made.end_forward(*given))),
    ]
    for module in model.modules():
        if module is not model and next(module.buffers(recurse=False), None) is not None:
            before = opaque(lambda *_: made.before_buffers())
            made.handles.append(module.register_forward_pre_hook(before))
    made.handles.append(ModelMethods(model, made.no_sync, made.monitor.reporting))
    ATTACHED.plans[id(model)] = made
    atexit.register(made.at_exit)
