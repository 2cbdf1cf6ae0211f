"""Every rank begins with rank 0's parameters and buffers, as with torch's DDP."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autosync.runtime.device.strides import dense_strides
from autosync.runtime.transport.agreement import RankReport, exchange_reports

CHUNK_BYTES = 64 << 20
"""Of initial values that travel in one message, and lie in one buffer meanwhile."""

ALIGNMENT_BYTES = 16
"""Of a tensor's place in that buffer, so that it can be seen as any type."""


def share_initial_values(control: Any, model: nn.Module, on_device: Any = None) -> None:
    """Broadcast rank 0's values. A collective.

    control: a process group that moves host memory. on_device: of the same ranks, one that moves
    the memory of the model's device; without, its values go through host memory.

    Raises:
        InvalidInput: on every rank, where one has other tensors than rank 0: a broadcast between
            two sizes would end the process, or never.
    """
    exchange_reports(RankReport(tensors=tensor_signatures(model)), control)
    held = [t.detach() for t in (*model.parameters(), *model.buffers()) if t.numel()]
    for device in dict.fromkeys(tensor.device for tensor in held):
        here = [tensor for tensor in held if tensor.device == device]
        if on_device is None or device.type == "cpu":
            _broadcast_values(control, here, torch.device("cpu"))
        else:
            _broadcast_values(on_device, here, device)


def tensor_signatures(model: nn.Module) -> dict[str, str]:
    """Type and shape of its parameters and buffers, by name, in the order in which values are sent;
    of parameters in another than row-major order their strides too, which their gradients travel
    in."""
    held = [*model.named_parameters(), *model.named_buffers()]
    found = {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in held}
    for name, parameter in model.named_parameters():
        if (strides := dense_strides(parameter)) is not None:
            found[name] += f" of strides {list(strides)}"
    return found


def _broadcast_values(group: Any, tensors: list[Tensor], device: torch.device) -> None:
    """In chunks. tensors: of any layout, which each keeps. device: whose memory the group moves."""
    chunk: list[Tensor] = []
    for tensor in tensors:
        if tensor.nbytes > CHUNK_BYTES:
            values = tensor.contiguous()  # the tensor itself, where it is
            for part in values.view(-1).split(CHUNK_BYTES // tensor.element_size()):
                _broadcast_chunk(group, [part], device)
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values)
            continue
        if sum(map(aligned_bytes, chunk)) + tensor.nbytes > CHUNK_BYTES:
            _broadcast_chunk(group, chunk, device)
            chunk = []
        chunk.append(tensor)
    if chunk:
        _broadcast_chunk(group, chunk, device)


def _broadcast_chunk(group: Any, tensors: list[Tensor], device: torch.device) -> None:
    sizes = [aligned_bytes(tensor) for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    places = [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(flat.split(sizes), tensors, strict=True)
    ]
    first = group.rank() == 0
    for place, tensor in zip(places, tensors, strict=True):
        if first:
            place.copy_(tensor)
    group.broadcast([flat], dist.BroadcastOptions()).wait()
    for place, tensor in zip(places, tensors, strict=True):
        if not first:
            tensor.copy_(place)


def aligned_bytes(tensor: Tensor) -> int:
    """Of a tensor's place in a buffer of bytes that holds several."""
    return -(-tensor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
