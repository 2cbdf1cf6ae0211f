"""Times single messages of each kind on a rank, sent as plans send them: what a probe fits
communication costs to."""

import time

import torch

from autosync.cluster import MessageKind
from autosync.codes import Op
from autosync.device_clock import wait_for_device
from autosync.runtime.device.streams import streams_for
from autosync.runtime.transport.base import Operation
from autosync.runtime.transport.process_groups import Groups
from autosync.trials.commands import MessagesTimed, TimeMessages
from autosync.trials.machine import host_id

PROBED_OPERATION: dict[MessageKind, Op] = {
    "all_reduce": Op.ALL_REDUCE,
    "reduce": Op.REDUCE,
    "broadcast": Op.BROADCAST,
    "all_gather": Op.ALL_GATHER,
    "all_to_all": Op.REDUCE_SCATTER,
    "send_recv": Op.PUSH,
}
"""The operation that a probe of the kind times; its root is the first of the workers."""

KINDS: tuple[MessageKind, ...] = tuple(PROBED_OPERATION)


def time_messages(command: TimeMessages, groups: Groups, device: torch.device) -> MessagesTimed:
    """When each of the messages began and ended on this rank.

    A message's time is taken on every member from a common start to its own end; the pool takes
    the latest end. device: where what travels begins and ends.
    """
    workers = command.workers
    if groups.rank not in workers:
        return MessagesTimed(host_id(), (), ())
    transport = groups.on(streams_for(device, groups.backend)).transport("timed", workers)
    meeting = groups.get("timed control", workers, "gloo")
    members = len(workers)
    elements = max(members, command.size_bytes // 4 // members * members)
    flat, sums = torch.zeros(2, elements, dtype=torch.float32, device=device)
    place = workers.index(groups.rank)
    operation = Operation(PROBED_OPERATION[command.kind], place, 0, members, elements, tag=0)
    start = transport.prepare(operation, flat, sums)

    def run() -> None:
        start().wait()
        wait_for_device(device)

    run()
    started, ended = [], []
    for _ in range(command.repeats):
        meeting.barrier().wait()
        started.append(time.monotonic())
        run()
        ended.append(time.monotonic())
    return MessagesTimed(host_id(), tuple(started), tuple(ended))
