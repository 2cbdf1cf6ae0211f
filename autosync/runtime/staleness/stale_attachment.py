"""Puts a plan that lags on a model and its optimizer, and takes it off again."""

import atexit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.codes import Op
from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.hooks.gradient_hooks import Removable
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.staleness.gradient_pipeline import KEY, GradientPipeline
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups, open_groups
from autosync.runtime.transport.rank_agreement import (
    check_same_plan,
    ranks_meet,
    share_initial_values,
)

AMP = "_step_supports_amp_scaling"
"""torch's mark of an optimizer that a GradScaler tells its scale."""


@dataclass(slots=True)
class StaleAttachment:
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
        self.given.__dict__.pop(AMP, None)
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

    def check_step(self, optimizer: Optimizer, *_: Any) -> None:
        if "grad_scale" in optimizer.__dict__:
            for name in ("grad_scale", "found_inf"):
                optimizer.__dict__.pop(name, None)
            raise NotSupported(
                "a GradScaler steps an optimizer whose plan lags: gradients of an earlier "
                "iteration have an earlier scale.",
                thing="GradScaler",
                remedy="Train in bfloat16 or float32, or use a strategy of staleness 0.",
            )

    def save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, KEY: self.pipeline.saved()}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.pipeline.load(state.get(KEY, []))
        return {name: value for name, value in state.items() if name != KEY}

    def start_buffers(self) -> None:
        """After a training forward pass: rank 0's module buffers leave."""
        if torch.is_grad_enabled() and self.model.training and self.synchronizing:
            self.buffers.start(_wait)

    def finish_buffers(self) -> None:
        self.buffers.finish(_wait)


def _wait(work: Any) -> None:
    with ranks_meet():
        work.wait()


def attach_stale(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    group: dist.ProcessGroup,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    agreed: bool = False,
) -> StaleAttachment:
    """As `attachment.attach`, for a plan that lags. A collective over the process group.

    Raises:
        NotSupported: the plan has messages that are no plain all-reduces between all ranks, the
            model is not in host memory, or a gradient is sparse.
    """
    parameters = [dict(model.named_parameters())[name] for name in names]
    check_stale_plan(plan, names, parameters)
    groups = open_groups(group, parameters[0].device)
    everyone = tuple(range(group.size()))
    with ExitStack() as undo:
        undo.callback(groups.close)
        with ranks_meet():
            control = groups.get("control", everyone, "gloo")
            if not agreed:
                check_same_plan(control, plan)
            if share_values:
                share_initial_values(control, model)
            travelling = groups.get("stale", everyone, "gloo")
            buffers = BufferBroadcast(
                model, groups.get("buffers", everyone, "gloo"), group.rank(), groups.streams
            )
        undo.pop_all()
    pipeline = GradientPipeline(plan, parameters, travelling, plan.shares[group.rank()])
    made = StaleAttachment(model, optimizer, pipeline, parameters, buffers, groups, max_grad_norm)
    _install(made)
    return made


def check_may_lag(plan: Plan, allowed: bool, optimizers: int) -> None:
    """Raises NotSupported where a plan that lags was not asked for, or has several optimizers."""
    if not allowed:
        raise NotSupported(
            f"the plan applies gradients {plan.staleness} iterations later, which is not the same "
            "training.",
            thing="plan.staleness",
            value=plan.staleness,
            remedy="Pass allow_staleness=True where the training can bear it, or use a strategy of "
            "staleness 0.",
        )
    if optimizers != 1:
        raise NotSupported(
            f"the plan lags, and {optimizers} optimizers were given.",
            thing="optimizer",
            value=optimizers,
            remedy="Give one optimizer with a parameter group each, or use staleness 0.",
        )


def check_stale_plan(plan: Plan, names: tuple[str, ...], parameters: list[nn.Parameter]) -> None:
    """Raises NotSupported for what only a plan of staleness 0 can do."""
    everyone = (tuple(range(plan.world_size)),)
    for message in plan.messages:
        plain = message.operation == Op.ALL_REDUCE and message.encoding == 0
        if not plain or plan.teams[message.teams] != everyone:
            shard = plan.shards[plan.buckets[message.bucket][0].shard]
            raise _refused(
                f"variable {names[shard.variable]!r} travels otherwise than by a plain all-reduce "
                "between all ranks",
                f"variable {names[shard.variable]}",
                message.operation.name.lower(),
            )
    if plan.overlap_forward:
        why = "it also lets messages run into the next forward pass, which staleness does by itself"
        raise _refused(why, "plan.overlap_forward", True)
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.device.type != "cpu":
            where = f"variable {name!r} is on {parameter.device}, and plans that lag run in host "
            raise _refused(where + "memory only", f"variable {name}", str(parameter.device))


def _refused(why: str, thing: str, value: object) -> NotSupported:
    return NotSupported(
        f"the plan lags, and {why}.",
        thing=thing,
        value=value,
        remedy="Use all_reduce for every variable, without encodings, or staleness 0.",
    )


def _install(made: StaleAttachment) -> None:
    model, optimizer = made.model, made.given
    for variable, parameter in enumerate(made.parameters):
        hook = made.gradient_hook(variable)
        made.handles.append(parameter.register_post_accumulate_grad_hook(hook))
    made.handles += [
        optimizer.register_step_pre_hook(made.check_step),
        optimizer.register_step_post_hook(made.note_step),
        optimizer.register_state_dict_post_hook(made.save),
        optimizer.register_load_state_dict_pre_hook(made.load),
        model.register_forward_pre_hook(opaque(lambda *_: made.finish_buffers())),
        model.register_forward_hook(opaque(lambda *_: made.start_buffers())),
    ]
    optimizer.__dict__[AMP] = True
    model.__dict__["no_sync"] = made.no_sync
    ATTACHED.plans[id(model)] = made
    atexit.register(made.at_exit)
