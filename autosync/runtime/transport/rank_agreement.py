"""What all ranks exchange before a plan starts: the same plan, the same initial values, and that
each of them can begin."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store

from autosync.errors import AutosyncError, InvalidInput
from autosync.plan import Plan
from autosync.runtime.device.strides import dense_strides
from autosync.runtime.transport.failures import lost_peer
from autosync.runtime.transport.peer_refusals import Refusals
from autosync.runtime.transport.process_groups import Groups

PATIENCE = timedelta(seconds=10)
"""How long a rank that cannot begin waits for the others to hear of it."""

CHUNK_BYTES = 64 << 20
"""Of initial values that travel in one message, and lie in one buffer meanwhile."""

ALIGNMENT_BYTES = 16
"""Of a tensor's place in that buffer, so that it can be seen as any type."""


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


def share_initial_values(control: Any, model: nn.Module, on_device: Any = None) -> None:
    """Every rank begins with rank 0's parameters and buffers, as with torch's DDP.

    control: a process group that moves host memory. on_device: of the same ranks, one that moves
    the memory of the model's device; without, its values go through host memory.

    Raises:
        InvalidInput: on every rank, where one has other tensors than rank 0: a broadcast between
            two sizes would end the process, or never.
    """
    told = json.dumps(list(forms_of(model).items()))  # in the order in which values are sent
    if len(set(_gathered(control, sha256(told.encode()).digest()))) > 1:
        check_same_tensors([dict(json.loads(other)) for other in _gathered(control, told.encode())])
    held = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.numel()]
    for device in dict.fromkeys(tensor.device for tensor in held):
        here = [tensor for tensor in held if tensor.device == device]
        if on_device is None or device.type == "cpu":
            _broadcast_values(control, here, torch.device("cpu"))
        else:
            _broadcast_values(on_device, here, device)


def _broadcast_values(group: Any, tensors: list[Tensor], device: torch.device) -> None:
    """In chunks. tensors: of any layout, which each keeps. device: whose memory the group moves."""
    chunk: list[Tensor] = []
    for tensor in tensors:
        if tensor.nbytes > CHUNK_BYTES:
            values = tensor.contiguous()  # the tensor itself, where it is
            for part in values.view(-1).split(CHUNK_BYTES // tensor.element_size()):
                _broadcast_chunk(group, [part], device)
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values)
            continue
        if sum(map(_place_bytes, chunk)) + tensor.nbytes > CHUNK_BYTES:
            _broadcast_chunk(group, chunk, device)
            chunk = []
        chunk.append(tensor)
    if chunk:
        _broadcast_chunk(group, chunk, device)


def _broadcast_chunk(group: Any, tensors: list[Tensor], device: torch.device) -> None:
    sizes = [_place_bytes(tensor) for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    places = [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(flat.split(sizes), tensors, strict=True)
    ]
    first = group.rank() == 0
    if first:
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
    group.broadcast([flat], dist.BroadcastOptions()).wait()
    if not first:
        for place, tensor in zip(places, tensors, strict=True):
            tensor.copy_(place)


def _place_bytes(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def forms_of(model: nn.Module) -> dict[str, str]:
    """Type and shape of its parameters and buffers, by name; of parameters in another than
    row-major order their strides too, which their gradients travel in."""
    held = [*model.named_parameters(), *model.named_buffers()]
    found = {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in held}
    for name, parameter in model.named_parameters():
        if (strides := dense_strides(parameter)) is not None:
            found[name] += f" of strides {list(strides)}"
    return found


def check_same_tensors(everyone: Sequence[dict[str, str]]) -> None:
    """everyone: `forms_of` each rank's model. Raises InvalidInput where one is not rank 0's."""
    first = list(everyone[0].items())
    for rank, other in enumerate(everyone):
        if list(other.items()) != first:
            raise _other_tensors(everyone[0], rank, other)


def _gathered(control: Any, mine: bytes) -> list[bytes]:
    """What every rank tells, by rank. A collective."""
    world = control.size()
    lengths = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(world)]
    length = torch.tensor([len(mine)], device="cpu")
    control.allgather([lengths], [length]).wait()
    longest = max(int(each) for each in lengths)
    padded = torch.tensor(list(mine.ljust(longest, b"\0")), dtype=torch.uint8, device="cpu")
    texts = [torch.zeros_like(padded) for _ in range(world)]
    control.allgather([texts], [padded]).wait()
    return [bytes(text[: int(each)].tolist()) for text, each in zip(texts, lengths, strict=True)]


def _other_tensors(first: dict[str, str], rank: int, other: dict[str, str]) -> InvalidInput:
    """In the same words on every rank."""
    named = (name for name in {**first, **other} if first.get(name) != other.get(name))
    name = next(named, "")
    if name:
        here, there = first.get(name, "missing"), other.get(name, "missing")
        what = f"{name!r} is {here} on rank 0 and {there} on rank {rank}"
    else:
        what = f"rank {rank} has its tensors in another order than rank 0"
    return InvalidInput(
        f"the ranks' models differ: {what}.",
        thing=f"model.{name}" if name else "model",
        value=other.get(name, "missing") if name else list(other)[:8],
        remedy="Build the same model on every rank, buffers included.",
    )


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
