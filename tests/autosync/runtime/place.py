"""Where the models of this process live, and how their messages get to the backend.

A rank that `ranks` starts has its place set once; everybody else is in host memory.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from autosync.runtime.device.streams import ONE_ORDER, STAGED, Streams

Module = TypeVar("Module", bound=nn.Module)

CPU = torch.device("cpu")


@dataclass(slots=True)
class Place:
    """streams: None leaves them to `attach`."""

    device: torch.device = CPU
    streams: Streams | None = None


HERE = Place()

WAYS = {
    "host": Place(),
    # The ways of a GPU with host memory as the device: threads, buffers and order, without a GPU.
    "staged": Place(streams=Streams(STAGED)),
    "one order": Place(streams=Streams(ONE_ORDER)),
    "cuda": Place(torch.device("cuda")),
    "nccl": Place(torch.device("cuda")),
}
"""By the word that `ranks` is given. On the last two the process group is gloo's and NCCL's."""


def settle(way: str, rank: int) -> None:
    """This process is a rank of that kind from now on. Ranks share a GPU where there are fewer."""
    HERE.device, HERE.streams = WAYS[way].device, WAYS[way].streams
    if HERE.device.type == "cuda":
        HERE.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(HERE.device)
        torch.backends.cudnn.allow_tf32 = False  # rounds to ten bits: other sums flip them
        torch.backends.cudnn.deterministic = True


def here(model: Module) -> Module:
    return model.to(HERE.device)


def beside(model: nn.Module, tensor: Tensor) -> Tensor:
    """On the model's device."""
    return tensor.to(next(model.parameters()).device)
