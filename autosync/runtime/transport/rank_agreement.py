"""What all ranks exchange before a plan starts: the same plan, the same initial values, and that
each of them can begin."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import AutosyncError, InvalidInput
from autosync.plan import Plan
from autosync.runtime.transport.failures import lost_peer
from autosync.runtime.transport.peer_refusals import Refusals
from autosync.runtime.transport.process_groups import Groups

PATIENCE = timedelta(seconds=10)
"""How long a rank that cannot begin waits for the others to hear of it."""


@contextmanager
def ranks_meet() -> Iterator[None]:
    """Raises SynchronizationFailed where a peer does not come."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for a broken process group or store
        raise lost_peer(
            f"the ranks did not meet to begin: {error}", "process_group", None, state_is_split=False
        ) from error


@dataclass(frozen=True, slots=True)
class RankMeeting:
    """Where the ranks of one attachment meet. control: a process group of all of them, for small
    exchanges. store: with keys of this attachment only."""

    control: Any
    store: Store
    refusals: Refusals


def meeting_of(groups: Groups, control: Any) -> RankMeeting:
    """Of the next attachment of those that share the groups one after another."""
    times = groups.store.add(f"attached-by-{groups.rank}", 1)
    store = PrefixStore(f"attachment-{times}", groups.store)
    return RankMeeting(control, store, Refusals(store, groups.rank))


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


@contextmanager
def begun_together(meeting: RankMeeting) -> Iterator[None]:
    """What one rank cannot do inside is an error on every rank. All of them leave together, so that
    none ends a process group which another one is still opening.

    Raises:
        AutosyncError: as the first rank that could not, in its words.
        SynchronizationFailed: a peer does not come.
    """
    try:
        yield
    except Exception as error:  # modules of the script's own may raise anything
        meeting.refusals.post(_told(error))
        with suppress(RuntimeError):  # a peer that is lost does not hear of it
            _count(meeting.control, True, PATIENCE)
        raise
    with ranks_meet():
        stopped = _count(meeting.control, False)
    if stopped:
        raise meeting.refusals.find() or lost_peer(
            f"{stopped} ranks could not begin", "process_group", stopped, state_is_split=False
        )


def _count(control: Any, stopped: bool, patience: timedelta | None = None) -> int:
    """How many ranks have stopped. A collective."""
    count = torch.tensor([stopped], dtype=torch.int32, device="cpu")
    meeting = control.allreduce([count], dist.AllreduceOptions())
    meeting.wait() if patience is None else meeting.wait(patience)
    return int(count)


def _told(error: Exception) -> AutosyncError:
    if isinstance(error, AutosyncError):
        return error
    kind = type(error).__name__
    return InvalidInput(
        f"{kind}: {error}", thing="autosync.distribute", value=kind, remedy="See that rank's log."
    )
