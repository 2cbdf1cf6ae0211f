"""What all ranks exchange before a plan starts: the same plan, the same initial values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import AutosyncError, InvalidInput
from autosync.plan import Plan
from autosync.runtime.device.streams import on_device
from autosync.runtime.transport.failures import lost_peer
from autosync.runtime.transport.process_groups import Groups


@contextmanager
def ranks_meet() -> Iterator[None]:
    """Raises SynchronizationFailed where a peer does not come."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group or store
        raise lost_peer(
            f"the ranks did not meet to begin: {error}", "process_group", None, state_is_split=False
        ) from error


def refuse_together(
    check: Callable[[], None], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Run a check on every rank; what it raises on one is raised on all. device: of the model."""
    mine: AutosyncError | None = None
    try:
        check()
    except AutosyncError as error:
        mine = error
    found: list[AutosyncError | None] = [None] * group.size()
    with on_device(device):
        dist.all_gather_object(found, mine, group=group)
    if mine is not None:
        raise mine
    for rank, theirs in enumerate(found):
        if theirs is not None:
            theirs.message = f"on rank {rank}, {theirs.message}"
            raise theirs


def own_store(groups: Groups) -> Store:
    """Keys of one attachment, among those that share the groups one after another."""
    times = groups.store.add(f"attached-by-{groups.rank}", 1)
    return PrefixStore(f"attachment-{times}", groups.store)


def check_same_plan(control: Any, plan: Plan) -> None:
    """Raises InvalidInput on every rank when one rank's plan is not rank 0's."""
    mine = torch.tensor(list(bytes.fromhex(plan.id)), dtype=torch.uint8, device="cpu")
    first = mine.clone()
    control.broadcast([first], dist.BroadcastOptions()).wait()
    differs = torch.tensor([0 if torch.equal(mine, first) else 1], device="cpu")
    control.allreduce([differs], dist.AllreduceOptions()).wait()
    if int(differs):
        raise InvalidInput(
            f"the plans of {int(differs)} ranks differ from rank 0's; this rank has {plan.id}.",
            thing="plan",
            value=plan.id,
            remedy="Give every rank the same bundle.",
        )


def share_initial_values(control: Any, model: nn.Module) -> None:
    """Every rank begins with rank 0's parameters and buffers, as with torch's DDP."""
    for tensor in [*model.parameters(), *model.buffers()]:
        copy = tensor.detach().cpu().contiguous()
        flat = copy.view(-1).view(torch.uint8)
        control.broadcast([flat], dist.BroadcastOptions()).wait()
        with torch.no_grad():
            tensor.copy_(copy)
