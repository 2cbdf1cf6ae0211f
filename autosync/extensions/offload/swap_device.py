"""From which device a model's tensors can be swapped, and to where."""

import torch
from torch import nn

from autosync.errors import NotSupported
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.device_memory import DeviceMemory, GpuMemory
from autosync.extensions.offload.host_buffers import HostBuffers
from autosync.extensions.offload.host_transfers import GpuTransfers, HostTransfers, ThreadTransfers
from autosync.extensions.offload.swapped_bytes import SwapDevice


def check_swappable(model: nn.Module, given: nn.Module) -> None:
    """given: what the script has, a compiled form of the model perhaps.

    Raises:
        NotSupported: it is compiled, or in host memory and no arena stands for a device.
    """
    if given is not model:
        raise NotSupported(
            "the model is compiled, and what a compiled forward pass saves cannot be swapped.",
            thing="swap.budget_bytes",
            remedy="Train the plain model, or use a strategy without swap.",
        )
    device_memory(model)


def device_memory(model: nn.Module) -> DeviceMemory:
    """Raises NotSupported where the model is in host memory and no arena stands for a device."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    if device.type == "cuda":
        return GpuMemory(device)
    if Arena.entered:
        return Arena.entered[-1]
    raise NotSupported(
        f"tensors are swapped from an NVIDIA GPU to host memory, and the model is on {device}.",
        thing="swap.budget_bytes",
        value=str(device),
        remedy="Move the model to a GPU, use a strategy without swap, or emulate a device: train "
        "within `autosync.extensions.offload.arena.Arena(bytes)`.",
    )


def swap_device_of(model: nn.Module) -> SwapDevice:
    """Raises NotSupported as `device_memory` does."""
    memory = device_memory(model)
    transfers: HostTransfers
    if isinstance(memory, Arena):
        transfers = ThreadTransfers(memory.bytes_per_second)
    else:
        transfers = GpuTransfers(memory.device)
    return SwapDevice(memory, transfers, HostBuffers(transfers.host_buffer))
