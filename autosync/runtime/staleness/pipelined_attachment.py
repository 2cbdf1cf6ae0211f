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

from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.gradient_hooks import Removable
from autosync.runtime.hooks.plain_copies import PlainCopies
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.staleness.gradient_pipeline import KEY, GradientPipeline
from autosync.runtime.staleness.lagging_groups import met_ranks, wait_for
from autosync.runtime.staleness.lagging_plans import check_lagging_plan
from autosync.runtime.staleness.scaler_refusal import refuse_scalers
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups


@dataclass(slots=True)
class PipelinedAttachment:
    """A plan of staleness s at work. When `backward()` returns, `parameter.grad` is the average
    gradient of the iteration s before, or None in the first s iterations, so that whatever the
    script does to gradients before `step()` is done to what is applied.

    given: the optimizer as the script gave it. synchronizing: False inside `no_sync`.
    """

    model: nn.Module
    given: Optimizer
    pipeline: GradientPipeline
    parameters: list[nn.Parameter]
    buffers: BufferBroadcast
    groups: Groups
    max_grad_norm: float | None
    handles: list[Removable] = field(default_factory=list)
    synchronizing: bool = True
    stepped: bool = True

    def flush(self) -> None:
        """Nothing is under way any more; what no step has applied is kept."""
        self.pipeline.wait()
        self.finish_buffers()

    def detach(self, keep_state: bool = True) -> None:
        """Apply what is left, oldest first, so that no gradient is lost; then leave model and
        optimizer as they were. keep_state: False drops it."""
        self.flush()
        self._unhook()
        while keep_state and (sums := self.pipeline.rest()) is not None:
            self._give(sums)
            self.given.step()
        for parameter in self.parameters:
            parameter.grad = None
        self.groups.close()

    def _unhook(self) -> None:
        atexit.unregister(self.at_exit)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.model.__dict__.pop("no_sync", None)
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
            self.pipeline.pack(variable, parameter.grad)

        return hook

    def _begin(self) -> None:
        if not self.stepped:
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )
        self.pipeline.begin()
        Autograd._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.pipeline.end()
        self.stepped = False
        self._give(self.pipeline.due())

    def _give(self, sums: list[Tensor] | None) -> None:
        for variable, parameter in enumerate(self.parameters):
            parameter.grad = None if sums is None else sums[variable]
        if sums is not None and self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)

    def note_step(self, *_: Any) -> None:
        self.stepped = True

    def save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, KEY: self.pipeline.saved()}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.pipeline.load(state.get(KEY, []))
        return {name: value for name, value in state.items() if name != KEY}

    def start_buffers(self) -> None:
        """After a training forward pass: rank 0's module buffers leave."""
        if torch.is_grad_enabled() and self.model.training and self.synchronizing:
            self.buffers.start(wait_for)

    def finish_buffers(self) -> None:
        self.buffers.finish(wait_for)


def attach_pipelined(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    group: dist.ProcessGroup,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    agreed: bool = False,
) -> PipelinedAttachment:
    """As `attachment.attach`, for a plan that applies gradients later. A collective over the
    process group.

    Raises:
        NotSupported: the plan has messages that are no plain all-reduces between all ranks, the
            model is not in host memory, or a gradient is sparse.
    """
    parameters = [dict(model.named_parameters())[name] for name in names]
    check_lagging_plan(plan, names, parameters)
    with met_ranks(model, plan, group, share_values, agreed) as groups:
        pipeline = GradientPipeline(plan, parameters, groups.gradients, plan.shares[group.rank()])
    made = PipelinedAttachment(
        model, optimizer, pipeline, parameters, groups.buffers, groups.all, max_grad_norm
    )
    _install(made)
    return made


def _install(made: PipelinedAttachment) -> None:
    model, optimizer = made.model, made.given
    for variable, parameter in enumerate(made.parameters):
        hook = made.gradient_hook(variable)
        made.handles.append(parameter.register_post_accumulate_grad_hook(hook))
    made.handles += [
        PlainCopies(model, made.flush),
        *refuse_scalers(optimizer),
        optimizer.register_step_post_hook(made.note_step),
        optimizer.register_state_dict_post_hook(made.save),
        optimizer.register_load_state_dict_pre_hook(made.load),
        model.register_forward_pre_hook(opaque(lambda *_: made.finish_buffers())),
        model.register_forward_hook(opaque(lambda *_: made.start_buffers())),
    ]
    model.__dict__["no_sync"] = made.no_sync
    ATTACHED.plans[id(model)] = made
    atexit.register(made.at_exit)
