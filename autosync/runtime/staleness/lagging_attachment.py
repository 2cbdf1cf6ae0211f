"""Puts a plan that lags on a model, in the form that it has."""

from collections.abc import Callable

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.plan import Plan
from autosync.runtime.staleness.clocked_attachment import ClockedAttachment, attach_clocked
from autosync.runtime.staleness.lagging_plans import has_clocks
from autosync.runtime.staleness.pipelined_attachment import PipelinedAttachment, attach_pipelined

LaggingAttachment = PipelinedAttachment | ClockedAttachment


def attach_lagging(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    group: dist.ProcessGroup,
    *,
    max_grad_norm: float | None = None,
    share_values: bool = True,
    agreed: bool = False,
) -> LaggingAttachment:
    """As `attachment.attach`, for a plan of a staleness above 0. A collective over the process
    group. Raises as `attach_pipelined` and `attach_clocked`."""
    attach: Callable[..., LaggingAttachment]
    attach = attach_clocked if has_clocks(plan) else attach_pipelined
    return attach(
        model,
        optimizer,
        plan,
        names,
        group,
        max_grad_norm=max_grad_norm,
        share_values=share_values,
        agreed=agreed,
    )
