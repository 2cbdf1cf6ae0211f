"""Times single messages of each kind on a rank: what a probe fits communication costs to."""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autosync.cluster import MessageKind
from autosync.errors import InvalidInput
from autosync.trials.commands import MessagesTimed, TimeMessages
from autosync.trials.machine import host_id

KINDS: tuple[MessageKind, ...] = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_to_all",
    "send_recv",
)


class MessageGroups:
    """The process groups that single messages travel on, one for each set of ranks.

    timeout: of a message; by default the default process group's.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._timeout = timeout
        self._made: dict[tuple[int, ...], Any] = {}

    def get(self, workers: tuple[int, ...]) -> Any:
        """Every rank of the job asks, members or not, in the same order."""
        if workers not in self._made:
            self._made[workers] = dist.new_group(list(workers), timeout=self._timeout)
        return self._made[workers]

    def close(self) -> None:
        """End them all; what is in flight on them fails."""
        while self._made:
            _, group = self._made.popitem()
            if isinstance(group, dist.ProcessGroup):  # this rank is a member
                with contextlib.suppress(RuntimeError):  # it may have failed already
                    group.abort()
                dist.destroy_process_group(group)


def time_messages(
    rank: int, command: TimeMessages, device: torch.device, groups: MessageGroups
) -> MessagesTimed:
    """When each of the messages began and ended on this rank.

    A message's time is taken on every member from a common start to its own end; the pool takes
    the latest end. device: where what travels begins and ends; by a backend that moves host memory
    it travels as in the runtime, through a copy.
    """
    workers = command.workers
    group = groups.get(workers)
    if rank not in workers:
        return MessagesTimed(host_id(), (), ())
    staged = device.type == "cuda" and dist.get_backend(group) == "gloo"
    travels = torch.device("cpu") if staged else device
    elements = command.size_bytes // 4
    message = _message(command.kind, elements, workers, rank, group, travels)
    run = _on_device(message, elements, device, staged)
    run()
    started, ended = [], []
    for _ in range(command.repeats):
        dist.barrier(group)
        if device.type == "cuda":
            torch.cuda.synchronize()  # NCCL's barrier is a kernel
        started.append(time.monotonic())
        run()
        ended.append(time.monotonic())
    return MessagesTimed(host_id(), tuple(started), tuple(ended))


def _on_device(
    message: Callable[[], object], elements: int, device: torch.device, staged: bool
) -> Callable[[], object]:
    """The message from when its values are on the device until they are there again."""
    if device.type != "cuda":
        return message

    def direct() -> None:
        message()
        torch.cuda.synchronize()

    if not staged:
        return direct
    on_device = torch.zeros(elements, device=device)
    on_host = torch.zeros(elements, pin_memory=True)

    def through_host() -> None:
        on_host.copy_(on_device)
        message()
        on_device.copy_(on_host)
        torch.cuda.synchronize()

    return through_host


def _message(
    kind: MessageKind,
    elements: int,
    workers: tuple[int, ...],
    rank: int,
    group: Any,
    device: torch.device,
) -> Callable[[], object]:
    """A message of `elements` float32 contributed by each replica."""
    count = len(workers)
    elements = max(count, elements // count * count)
    flat = torch.zeros(elements, device=device)
    root = workers[0]
    match kind:
        case "all_reduce":
            return lambda: dist.all_reduce(flat, group=group)
        case "reduce":
            return lambda: dist.reduce(flat, root, group=group)
        case "broadcast":
            return lambda: dist.broadcast(flat, root, group=group)
        case "all_gather":
            parts = [torch.zeros_like(flat[: elements // count]) for _ in workers]
            mine = flat[: elements // count]
            if dist.get_backend(group) == "gloo":
                return _all_gather(parts, mine, workers, rank, group)
            return lambda: dist.all_gather(parts, mine, group=group)
        case "all_to_all":
            received = torch.zeros_like(flat)
            return lambda: dist.all_to_all_single(received, flat, group=group)
        case "send_recv":
            return _push(flat, workers, rank, group)
    raise InvalidInput(f"messages of kind {kind!r} are not timed.", thing="kind", value=kind)


def _all_gather(
    parts: list[torch.Tensor],
    mine: torch.Tensor,
    workers: tuple[int, ...],
    rank: int,
    group: Any,
) -> Callable[[], object]:
    """As the runtime gathers on gloo: every worker sends its part to every other by itself."""
    received = {peer: part for peer, part in zip(workers, parts, strict=True) if peer != rank}

    def run() -> None:
        works = [dist.irecv(into, peer, group=group) for peer, into in received.items()]
        works += [dist.isend(mine, peer, group=group) for peer in received]
        for work in works:
            if work is not None:
                work.wait()

    return run


def _push(
    flat: torch.Tensor, workers: tuple[int, ...], rank: int, group: Any
) -> Callable[[], object]:
    """Every worker but the first sends its whole tensor to the first."""
    others = workers[1:]
    buffers = {peer: torch.zeros_like(flat) for peer in others} if rank == workers[0] else {}

    def run() -> None:
        works = (
            [dist.irecv(buffers[peer], peer, group=group) for peer in others]
            if buffers
            else [dist.isend(flat, workers[0], group=group)]
        )
        for work in works:
            if work is not None:
                work.wait()

    return run
