"""How the ranks of a plan that lags meet: the same plan, the same values, groups to send on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.extensions.staleness.lagging_plans import check_lagging_plan
from autosync.plan import Plan
from autosync.runtime.transport.agreement import (
    PATIENCE,
    RankMeeting,
    agreed_everywhere,
    check_same_plan,
    meeting_of,
    ranks_meet,
)
from autosync.runtime.transport.initial_values import share_initial_values
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups, open_groups


@dataclass(frozen=True, slots=True)
class LaggingJob:
    """What a plan that lags is put on.

    names: the plan's variables, in its order, as the model has them. group: of all replicas.
    max_grad_norm: of the gradient that a rank applies. share_values, agreed: see
    `attachment.attach`.
    """

    model: nn.Module
    optimizer: Optimizer
    plan: Plan
    names: tuple[str, ...]
    group: dist.ProcessGroup
    max_grad_norm: float | None = None
    share_values: bool = True
    agreed: bool = False


@dataclass(frozen=True, slots=True)
class LaggingGroups:
    """all: what `close` ends. gradients: for what lags. buffers: brings the modules' to rank 0's.
    parameters: of the plan's variables. undo: called where a rank cannot begin."""

    all: Groups
    meeting: RankMeeting
    gradients: Any
    buffers: BufferBroadcast
    parameters: list[nn.Parameter]
    undo: ExitStack


@contextmanager
def met_ranks(job: LaggingJob) -> Iterator[LaggingGroups]:
    """Groups of gloo, open from then on, unless a rank cannot begin: then all of them raise.
    A collective.

    Raises:
        NotSupported: the plan cannot lag on this model.
        SynchronizationFailed: a peer does not come.
    """
    model, group = job.model, job.group
    held = dict(model.named_parameters())
    parameters = [held[name] for name in job.names]
    groups = open_groups(group, parameters[0].device)
    everyone = tuple(range(group.size()))
    with ExitStack() as undo:
        undo.callback(groups.close)
        with ranks_meet():
            control = groups.get("control", everyone, "gloo")
            if not job.agreed:
                check_same_plan(control, job.plan)
            if job.share_values:
                share_initial_values(control, model)
            meeting = meeting_of(groups, control)
        with agreed_everywhere(control, patience=PATIENCE):  # before any other group is opened
            check_lagging_plan(job.plan, job.names, parameters)
        with agreed_everywhere(control, patience=PATIENCE):
            with ranks_meet():
                gradients = groups.get("lagging", everyone, "gloo")
                for_buffers = groups.get("buffers", everyone, "gloo")
            buffers = BufferBroadcast(model, for_buffers, group.rank(), groups.streams)
            yield LaggingGroups(groups, meeting, gradients, buffers, parameters, undo)
        undo.pop_all()


def wait_for(work: Any) -> None:
    """Raises SynchronizationFailed where a peer does not come."""
    with ranks_meet():
        work.wait()
