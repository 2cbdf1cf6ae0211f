"""`autosync.detach`: the plain model and optimizer, so that a second stage can begin."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.staleness.lagging import LaggingAttachment
from autosync.extensions.staleness.pipelined import PipelinedAttachment
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import Attachment
from autosync.runtime.hooks.torch_compile import compiled_from

Optimizers = Optimizer | Sequence[Optimizer]


def detach(model: nn.Module) -> tuple[nn.Module, Any]:
    """Take the plan off, or torch's DDP that `distribute` put around the model: returns the plain
    model, and the optimizer (or the list of them) as `distribute` was given it, trained on and
    with all its state.

    Call it on every rank, behind `step()`: gradients that no step has applied are dropped. What
    PowerSGD has not sent yet is dropped with the plan; a checkpoint keeps it. Of a plan that lags,
    gradients that are still to be applied are applied now, a step for each iteration; one with
    clocks gives every rank the sum of all updates and the mean of the optimizers' states.

    model: what `distribute` was given, or what it returned.

    Raises:
        InvalidInput: nobody has distributed the model.
        NotSupported: torch's `fully_shard` holds it.
        SynchronizationFailed: a peer died: the plan is off, but weights may be of two iterations.
    """
    plan = ATTACHED.plan_of(model)
    if isinstance(plan, LaggingAttachment):
        plan.detach()
        if isinstance(plan, PipelinedAttachment) and plan.monitor.failure is not None:
            raise plan.monitor.failure
        return model, plan.given
    if isinstance(plan, Attachment):
        return model, _detach_plan(plan)
    if (ddp := ATTACHED.ddp_around(compiled_from(model))) is not None:
        return ddp.module, _unwrap(ddp)
    if compiled_from(model) in ATTACHED.sharded:
        raise NotSupported(
            "torch's fully_shard cannot be taken off a model: no rank holds its whole parameters.",
            thing="model",
            value=type(model).__name__,
            remedy="Make the model anew, and load what torch.distributed.checkpoint.state_dict."
            "get_model_state_dict(..., options=StateDictOptions(full_state_dict=True)) gives.",
        )
    raise InvalidInput(
        f"the model ({type(model).__name__}) is not distributed.",
        thing="model",
        value=type(model).__name__,
        remedy="Give autosync.detach the model that autosync.distribute was given or returned.",
    )


def _detach_plan(plan: Attachment) -> Optimizers:
    plan.detach()
    if plan.engine.failure is not None:
        raise plan.engine.failure
    return plan.given


def _unwrap(ddp: DistributedDataParallel) -> Optimizers:
    made = ATTACHED.wrapped.pop(ddp)
    for handle in made.handles:
        handle.remove()
    with torch.no_grad():
        for parameter in ddp.module.parameters():
            parameter.grad = None
    ddp._remove_autograd_hooks()
    ddp.register_forward_pre_hook(_refuse_forward)
    ATTACHED.detached.add(ddp)
    return made.optimizers


def _refuse_forward(module: nn.Module, args: Any) -> None:
    raise InvalidInput(
        "a DistributedDataParallel was used after autosync.detach had taken it off its model.",
        thing="model",
        remedy="Use the model that autosync.detach returned.",
    )
