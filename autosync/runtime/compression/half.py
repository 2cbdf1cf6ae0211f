"""Messages of dense values: whole, or in half precision (fp16, bf16). New values always travel
whole: the compiler gives their messages no encoding.

With e the relative rounding of a half (2^-11 for fp16, 2^-8 for bf16), a sum that ranks add up by
themselves (parameter server, reduce-scatter on gloo) is off by at most e times the sum of the
absolute values, for it is formed in float32 from summands that were rounded once. An all-reduce,
and a tree, add in the half itself along the way: over n ranks about n e, and fp16 overflows beyond
65504.
"""

from functools import partial

import torch
from torch import Tensor

from autosync.codes import ENCODINGS, POWERSGD, Op
from autosync.errors import NotSupported
from autosync.plan import Message, Plan
from autosync.runtime.layout.records import Bucket
from autosync.runtime.transport.base import Start, Then, Work, operation_of
from autosync.runtime.transport.process_groups import Groups

HALF = {ENCODINGS.index("fp16"): torch.float16, ENCODINGS.index("bf16"): torch.bfloat16}


def encoding_name(code: int) -> str:
    return f"PowerSGD of rank {code - POWERSGD}" if code > POWERSGD else ENCODINGS[code]


def check_lossless(plan: Plan) -> None:
    """Raises NotSupported naming the first message that loses information."""
    for index, message in enumerate(plan.messages):
        if message.encoding:
            name = encoding_name(message.encoding)
            raise NotSupported(
                f"message {index} of the plan ({message.operation.name}) is packed by {name}, "
                "which loses information.",
                thing=f"message {index}",
                value=name,
                remedy="Pass allow_lossy=True where the training can bear it, or tune again "
                "without lossy messages.",
            )


def dense_payload_bytes(message: Message, bucket: Bucket) -> int:
    """What a rank's part in a message takes on the wire."""
    item = bucket.buffer.element_size()
    return bucket.size * (min(item, 2) if message.encoding in HALF else item)


def multiplies_by_shares(plan: Plan, index: int, values: Tensor, groups: Groups) -> bool:
    """Whether message `index`, the first of a bucket of gradients, multiplies what each rank brings
    by its share as it adds up: one that forms the sum of all ranks, unencoded, on NCCL, which reads
    the values anyway. All ranks decide alike. Not an all-reduce: NVSwitch adds up (NVLS) plain sums
    of floating-point values alone.

    NCCL takes any shares of float16, float32 and float64, and equal ones of every type.
    """
    message = plan.messages[index]
    everyone = [len(team) for team in plan.teams[message.teams]] == [plan.world_size]
    alike = len(set(plan.shares)) == 1
    takes = alike or values.dtype in (torch.float16, torch.float32, torch.float64)
    adds_up = message.operation in (Op.REDUCE, Op.REDUCE_SCATTER, Op.PUSH)
    unencoded = adds_up and not message.encoding and plan.world_size > 1
    return groups.streams.mode.one_order and unencoded and everyone and takes


def dense_message(
    plan: Plan, index: int, bucket: Bucket, groups: Groups, queue: str
) -> Start | None:
    """What starts a message of values, whole or in half precision; None when this rank has no part
    in it. queue: what it queues in; each has process groups of its own.

    Raises:
        NotSupported: it is packed otherwise.
    """
    message, buffer = plan.messages[index], bucket.buffer
    if message.encoding and message.encoding not in HALF:
        raise NotSupported(
            f"the runtime cannot pack {message.operation.name} of message {index} by "
            f"{encoding_name(message.encoding)}.",
            thing=f"message {index}",
            value=message.encoding,
            remedy="Choose fp16 or bf16; PowerSGD packs ring all-reduces.",
        )
    team = plan.team_of(message, groups.rank)
    if len(team) < 2:
        return None
    transport = groups.transport(queue, team)
    if not message.encoding or buffer.element_size() <= 2:
        first = message.after < 0 and bucket.share_on_wire
        share = plan.shares[groups.rank] if first else None
        operation = operation_of(plan, index, groups.rank, bucket.size, share)
        return transport.prepare(operation, buffer, buffer)
    wire = torch.zeros_like(buffer, dtype=HALF[message.encoding])
    operation = operation_of(plan, index, groups.rank, bucket.size)
    start = transport.prepare(operation, wire, buffer)
    sums_are_in_buffer = transport.adds_up(message.operation)
    decode = partial(buffer.copy_, wire)

    def encoded() -> Work:
        wire.copy_(buffer)
        work = start()
        return work if sums_are_in_buffer else Then(decode, work)

    return encoded
