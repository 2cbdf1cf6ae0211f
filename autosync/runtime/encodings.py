"""Packs messages: none, fp16, bf16."""

import torch
from torch import Tensor

from autosync.codes import ENCODINGS
from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.records import Content, Finish
from autosync.runtime.transport import Groups, Start, operation

HALF = {ENCODINGS.index("fp16"): torch.float16, ENCODINGS.index("bf16"): torch.bfloat16}


def encoded(plan: Plan, index: int, content: Content, groups: Groups, queue: str) -> Start | None:
    """What issues a message, its encoding included; None when this rank has no part in it."""
    message, buffer = plan.messages[index], content.buffer
    if message.encoding == 0 or (message.encoding in HALF and buffer.element_size() <= 2):
        return operation(plan, index, content, groups, queue, buffer)
    if message.encoding not in HALF:
        raise NotSupported(
            f"the runtime does not know encoding {message.encoding} of message {index}.",
            thing=f"message {index}",
            value=message.encoding,
            remedy="Choose fp16 or bf16.",
        )
    wire = torch.zeros_like(buffer, dtype=HALF[message.encoding])
    start = operation(plan, index, content, groups, queue, wire)
    return _cast(start, buffer, wire) if start else None


def _cast(start: Start, buffer: Tensor, wire: Tensor) -> Start:
    def issue() -> Finish:
        wire.copy_(buffer)
        finish = start()

        def decode() -> None:
            finish()
            buffer.copy_(wire)

        return decode

    return issue
