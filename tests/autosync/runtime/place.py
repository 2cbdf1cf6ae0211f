"""Where the models of this process live, and how their messages get to the backend.

A rank that `ranks` starts has its place set once; everybody else is in host memory.
"""

import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.plan import Plan
from autosync.runtime.attachment import Attachment, attach
from autosync.runtime.device.streams import ONE_ORDER, STAGED, Streams
from autosync.trials.request_names import ComputeDevice
from autosync.trials.session import ReusedGroups

Module = TypeVar("Module", bound=nn.Module)

CPU = torch.device("cpu")
COMPUTE_DEVICE: ComputeDevice = "cpu" if os.environ.get("COMPUTE_DEVICE") == "cpu" else "cuda"
"""Of the tests marked `cuda`. In host memory they run over gloo, as `scripts/check_gpu` does there:
their own logic is shown, the GPU's is not."""
ON_GPUS = COMPUTE_DEVICE == "cuda"


@dataclass(slots=True)
class Place:
    """streams: None leaves them to `attach`. groups: the process groups that plan after plan
    runs on; None where each opens and ends its own."""

    device: torch.device = CPU
    streams: Streams | None = None
    groups: ReusedGroups | None = None


HERE = Place()

HOST_WAYS = {
    "host": Place(),
    # The ways of a GPU with host memory as the device: threads, buffers and order, without a GPU.
    "staged": Place(streams=Streams(STAGED)),
    "one order": Place(streams=Streams(ONE_ORDER)),
}
GPU_WAYS = {"cuda": "staged", "nccl": "one order"}
"""On these the process group is gloo's and NCCL's. Beside them the way without a GPU."""


def way_here(way: str) -> str:
    """What a way of a GPU stands for where the tests run without one."""
    return way if ON_GPUS else GPU_WAYS.get(way, way)


def settle(way: str, rank: int, keep_groups: bool) -> None:
    """This process is a rank of that kind from now on. Ranks share a GPU where there are fewer."""
    place = HOST_WAYS.get(way, Place(torch.device("cuda")))
    HERE.device, HERE.streams = place.device, place.streams
    HERE.groups = ReusedGroups() if keep_groups else None
    if HERE.device.type == "cuda":
        HERE.device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(HERE.device)
        torch.backends.cudnn.allow_tf32 = False  # rounds to ten bits: other sums flip them
        torch.backends.cudnn.deterministic = True


def here(model: Module) -> Module:
    return model.to(HERE.device)


def attach_here(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    **options: Any,
) -> Attachment:
    """`attach` in the way of this process."""
    groups = HERE.groups.get(dist.group.WORLD, HERE.device) if HERE.groups else None
    return attach(model, optimizer, plan, names, groups=groups, streams=HERE.streams, **options)


def beside(model: nn.Module, tensor: Tensor) -> Tensor:
    """On the model's device."""
    return tensor.to(next(model.parameters()).device)
