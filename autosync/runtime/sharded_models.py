"""Models of which a rank holds parts: torch's FSDP, and tensor parallelism by DTensors.

A plan synchronizes whole replicas, whose parameters are plain tensors. What shards them is found
without importing it: a model can be nothing that no module of torch has made.
"""

import sys
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup, get_world_size

from autosync.errors import NotSupported

FSDP = ("torch.distributed.fsdp", ("FullyShardedDataParallel", "FSDPModule"))
TENSOR = ("torch.distributed.tensor", ("DTensor",))


def check_unsharded(model: nn.Module) -> None:
    """Raises NotSupported where FSDP or tensor parallelism holds parameters of the model."""
    fsdp = _loaded(*FSDP)
    for name, module in model.named_modules():
        if isinstance(module, fsdp):
            raise _sharded_by_fsdp(model, name, type(module).__name__)
    dtensor = _loaded(*TENSOR)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, dtensor):
            raise _sharded_by_tensor(name, parameter)


def check_norm_is_global(max_grad_norm: float | None, group: ProcessGroup) -> None:
    """Raises NotSupported where ranks outside of the process group may hold parts of the model."""
    if max_grad_norm and group.size() < get_world_size():
        raise NotSupported(
            f"max_grad_norm={max_grad_norm} over a process group of {group.size()} of "
            f"{get_world_size()} ranks: where the others hold other parts of the model, as under "
            "tensor parallelism, the norm of this part is not the model's.",
            thing="max_grad_norm",
            value=max_grad_norm,
            remedy="Leave it out, use a strategy without owned or sharded updates, and clip before "
            "step() by a norm over all parts (docs/frameworks.md shows how).",
        )


def _loaded(module: str, names: tuple[str, ...]) -> tuple[type, ...]:
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names if hasattr(found, name))


def _sharded_by_fsdp(model: nn.Module, name: str, kind: str) -> NotSupported:
    where = f"its module {name!r}" if name else "it"
    return NotSupported(
        f"the model ({type(model).__name__}) is sharded by torch's FSDP ({where} is a "
        f"{kind}), which synchronizes its gradients itself.",
        thing="model",
        value=kind,
        remedy="Give the plain model, without fully_shard or FullyShardedDataParallel: a bundle "
        "of the strategy `fsdp2`, `zero2` or `hsdp` puts fully_shard on it.",
    )


def _sharded_by_tensor(name: str, parameter: Any) -> NotSupported:
    mesh, placements = parameter.device_mesh, tuple(map(str, parameter.placements))
    return NotSupported(
        f"parameter {name!r} is a DTensor ({', '.join(placements)} over mesh dimensions "
        f"{mesh.mesh_dim_names}): no plan synchronizes parts of tensors over the ranks of a mesh.",
        thing=f"parameter {name}",
        value=placements,
        remedy='Write DistributedDataParallel(model, device_mesh=mesh["dp"]) beside '
        "parallelize_module; or hold the parts as plain parameters of this rank's size, and call "
        'autosync.distribute(..., process_group=mesh["dp"].get_group()).',
    )
