"""The device that a model is on, and which devices the runtime takes."""

import warnings
from functools import cache

import torch
from torch import nn

from autosync.errors import NotSupported

CPU = torch.device("cpu")

UNVERIFIED = (
    "autosync's plans have not run over NCCL between ranks yet, neither on one GPU that they share "
    "nor over NVLink, PCIe, InfiniBand or several nodes: compare a few iterations with torch's DDP "
    "before you trust them, or ship the strategy `ddp`."
)


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
        _warn_unverified()


@cache
def _warn_unverified() -> None:
    warnings.warn(UNVERIFIED, stacklevel=4)
