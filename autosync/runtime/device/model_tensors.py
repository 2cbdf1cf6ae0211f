"""What the runtime takes of a model's tensors: the device that they are on, and the order in which
their elements lie in memory."""

import math
import os
import warnings
from functools import cache

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported

CPU = torch.device("cpu")

UNVERIFIED = (
    "autosync's plans have run over NCCL between ranks that share one GPU, by sockets, and not yet "
    "over NVLink, PCIe, InfiniBand or several nodes: compare a few iterations with torch's DDP "
    "before you trust them, or ship the strategy `ddp`."
)

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
FEWEST_QUEUES = 4
"""For the streams of computing, messages, their completion and NCCL."""


def device_of(model: nn.Module) -> torch.device:
    """Where the model is.

    Raises:
        NotSupported: on several devices, or neither in host memory nor on an NVIDIA GPU.
    """
    places = [(name, parameter.device) for name, parameter in model.named_parameters()]
    device = places[0][1] if places else CPU
    for name, found in places:
        if found.type not in ("cpu", "cuda"):
            raise _refused(name, found, "the runtime executes plans in host memory and on NVIDIA "
                           "GPUs only")  # fmt: skip
        if found != device:
            raise _refused(name, found, f"others are on {device}, and a plan is for one device")
    return device


def _refused(name: str, device: torch.device, why: str) -> NotSupported:
    return NotSupported(
        f"variable {name!r} is on {device}; {why}.",
        thing=f"variable {name}",
        value=str(device),
        remedy="Ship the strategy `ddp` (torch's own engine, on any device), or train on the CPU.",
    )


def warn_of_backend(backend: str, ranks: int) -> None:
    """Once a process. docs/gpus.md says what has run; what has is struck from the words."""
    if backend == "nccl" and ranks > 1:
        _warn_once(UNVERIFIED)
        queues = os.environ.get(QUEUES, "")
        if queues.isdecimal() and int(queues) < FEWEST_QUEUES:
            _warn_once(
                f"{QUEUES}={queues}: the GPU's streams share so few hardware queues that computing "
                f"may wait behind messages. Unless another library asks for it, leave {QUEUES} out "
                "of the environment (CUDA's default is 8)."
            )


@cache
def _warn_once(words: str) -> None:
    warnings.warn(words, stacklevel=4)


Shape = tuple[int, ...]


def memory_order(strides: Shape) -> tuple[int, ...]:
    """The dimensions, the one of the longest stride first."""
    return tuple(sorted(range(len(strides)), key=lambda dimension: -strides[dimension]))


def dense_strides(tensor: Tensor) -> Shape | None:
    """The strides of a tensor that fills its part of a storage with other strides than row-major
    order has, as channels_last does; None of any other."""
    dimensions = [d for d in memory_order(tensor.stride()) if tensor.shape[d] != 1]
    expected = 1
    for dimension in reversed(dimensions):
        if tensor.stride(dimension) != expected:
            return None
        expected *= tensor.shape[dimension]
    row_major = tuple(math.prod(tensor.shape[d + 1 :]) for d in range(tensor.dim()))
    return None if tensor.stride() == row_major or not expected else tensor.stride()


def shares_places(tensor: Tensor) -> bool:
    """Whether two elements of a tensor may lie in one place of its storage, as after `expand`."""
    reach = 0 if tensor.numel() else -1
    for dimension in reversed(memory_order(tensor.stride())):
        if tensor.shape[dimension] > 1:
            if tensor.stride(dimension) <= reach:
                return True
            reach += (tensor.shape[dimension] - 1) * tensor.stride(dimension)
    return False


def check_own_places(model: nn.Module) -> None:
    """Raises NotSupported where two elements of a parameter lie in one place of its storage: no
    optimizer can update them."""
    for name, parameter in model.named_parameters():
        if shares_places(parameter):
            strides = tuple(parameter.stride())
            raise NotSupported(
                f"elements of variable {name!r} share places of its storage: it has shape "
                f"{tuple(parameter.shape)} and strides {strides}.",
                thing=f"variable {name}",
                value=strides,
                remedy="Give the module nn.Parameter(parameter.detach().clone(memory_format="
                "torch.contiguous_format)) in its place, before the optimizer is made.",
            )
