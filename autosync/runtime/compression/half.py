"""Packs messages: none, fp16, bf16, PowerSGD. New values always travel whole: the compiler gives
their messages no encoding.

With e the relative rounding of a half (2^-11 for fp16, 2^-8 for bf16), a sum that ranks add up by
themselves (parameter server, reduce-scatter on gloo) is off by at most e times the sum of the
absolute values, for it is formed in float32 from summands that were rounded once. An all-reduce,
and a tree, add in the half itself along the way: over n ranks about n e, and fp16 overflows beyond
65504.
"""

import torch
from torch import Tensor

from autosync.codes import ENCODINGS, POWERSGD
from autosync.errors import NotSupported
from autosync.plan import Message, Plan
from autosync.runtime.layout.records import Bucket
from autosync.runtime.transport.operations import adds_up_itself, operation_start
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.start_finish import Finish, Start

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


def fixed_payload_bytes(message: Message, bucket: Bucket) -> int | None:
    """What a rank's part in a message takes on the wire; None where only its issuing says."""
    if message.operation.ragged or message.encoding > POWERSGD:
        return None
    item = bucket.buffer.element_size()
    return bucket.size * (min(item, 2) if message.encoding in HALF else item)


def encoded(plan: Plan, index: int, bucket: Bucket, groups: Groups, queue: str) -> Start | None:
    """What issues a message, its encoding included; None when this rank has no part in it."""
    message, buffer = plan.messages[index], bucket.buffer
    if message.encoding == 0 or (message.encoding in HALF and buffer.element_size() <= 2):
        first = message.after < 0 and bucket.share_on_wire
        share = plan.shares[groups.rank] if first else None
        return operation_start(plan, index, groups, queue, bucket.size, buffer, buffer, share)
    if message.encoding not in HALF:
        raise NotSupported(
            f"the runtime cannot pack {message.operation.name} of message {index} by "
            f"{encoding_name(message.encoding)}.",
            thing=f"message {index}",
            value=message.encoding,
            remedy="Choose fp16 or bf16; PowerSGD packs ring all-reduces.",
        )
    wire = torch.zeros_like(buffer, dtype=HALF[message.encoding])
    start = operation_start(plan, index, groups, queue, bucket.size, wire, buffer)
    if start is None:
        return None
    return _cast(start, buffer, wire, adds_up_itself(message.operation, groups.backend))


def _cast(start: Start, buffer: Tensor, wire: Tensor, summed: bool) -> Start:
    """summed: the operation leaves its sums in the buffer."""

    def issue() -> Finish:
        wire.copy_(buffer)
        finish = start()
        if summed:
            return finish

        def decode() -> None:
            finish()
            buffer.copy_(wire)

        return decode

    return issue
