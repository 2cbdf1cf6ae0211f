"""Keeps a module's buffers (running statistics) in step with rank 0's, as torch's DDP does.

DDP sends them before every forward; they are final when the forward before has ended, so here
they leave then, and travel beside the backward pass.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class BufferBroadcast:
    """group: of its own, so that nothing else waits behind it. rank: 0 sends."""

    def __init__(self, model: nn.Module, group: Any, rank: int):
        self.buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self.group = group
        self.rank = rank
        self.flat = torch.empty(sum(b.nbytes for b in self.buffers), dtype=torch.uint8)
        self.work: Any = None

    def start(self) -> None:
        """After a training forward: rank 0's values leave."""
        self.finish()
        if not self.buffers:
            return
        if self.rank == 0:
            for buffer, place in self._places():
                place.copy_(buffer.detach().contiguous().view(-1).view(torch.uint8))
        self.work = self.group.broadcast([self.flat], dist.BroadcastOptions())

    def finish(self) -> None:
        """Before the next forward, and before anybody reads the model's state."""
        if self.work is None:
            return
        work, self.work = self.work, None
        work.wait()
        if self.rank != 0:
            for buffer, place in self._places():
                values = place.clone().view(buffer.dtype).view(buffer.shape)
                buffer.detach().copy_(values)

    def _places(self) -> list[tuple[Tensor, Tensor]]:
        places, start = [], 0
        for buffer in self.buffers:
            places.append((buffer, self.flat[start : start + buffer.nbytes]))
            start += buffer.nbytes
        return places
