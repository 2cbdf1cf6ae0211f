"""How the ranks of a plan that lags meet: the same plan, the same values, groups to send on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from autosync.plan import Plan
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.process_groups import Groups, open_groups
from autosync.runtime.transport.rank_agreement import (
    check_same_plan,
    ranks_meet,
    share_initial_values,
)


@dataclass(frozen=True, slots=True)
class LaggingGroups:
    """all: what `close` ends. control: for small exchanges. gradients: for what lags. buffers:
    brings the modules' to rank 0's."""

    all: Groups
    control: Any
    gradients: Any
    buffers: BufferBroadcast


@contextmanager
def met_ranks(
    model: nn.Module, plan: Plan, group: dist.ProcessGroup, share_values: bool, agreed: bool
) -> Iterator[LaggingGroups]:
    """Groups of gloo, open from then on, unless what they are opened for fails. share_values,
    agreed: see `attachment.attach`. A collective."""
    groups = open_groups(group, next(model.parameters()).device)
    everyone = tuple(range(group.size()))
    with ExitStack() as undo:
        undo.callback(groups.close)
        with ranks_meet():
            control = groups.get("control", everyone, "gloo")
            if not agreed:
                check_same_plan(control, plan)
            if share_values:
                share_initial_values(control, model)
            gradients = groups.get("lagging", everyone, "gloo")
            for_buffers = groups.get("buffers", everyone, "gloo")
        buffers = BufferBroadcast(model, for_buffers, group.rank(), groups.streams)
        yield LaggingGroups(groups, control, gradients, buffers)
        undo.pop_all()


def wait_for(work: Any) -> None:
    """Raises SynchronizationFailed where a peer does not come."""
    with ranks_meet():
        work.wait()
