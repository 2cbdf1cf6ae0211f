"""torch's own DistributedDataParallel, for plans whose engine is `ddp`: its wrapping and its bucket
sizes stand here and nowhere else."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.plan.plan_document import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.units import MIB


def wrap_in_ddp(
    model: nn.Module,
    bucket_bytes: int = 0,
    process_group: dist.ProcessGroup | None = None,
    *,
    share_values: bool = True,
    byte_scale: float = 1.0,
) -> DistributedDataParallel:
    """The model in torch's DDP.

    bucket_bytes: of the plan, already scaled; 0 stands for torch's default. share_values: begin
    with rank 0's parameters and buffers on every rank. byte_scale: of the model's variables.
    """
    if byte_scale == 1.0:
        # At its default, and only then, torch keeps the first bucket small: name no size then.
        usual = bucket_bytes in (0, DDP_BUCKET_BYTES)
        cap_mebibytes = None if usual else bucket_bytes / MIB
        return DistributedDataParallel(
            model,
            process_group=process_group,
            init_sync=share_values,
            bucket_cap_mb=cap_mebibytes,
        )
    return DistributedDataParallel(
        model,
        process_group=process_group,
        init_sync=share_values,
        bucket_cap_mb_list=bucket_limits_mebibytes(bucket_bytes, byte_scale),  # type: ignore[arg-type]  # torch multiplies: fractions do
    )


def bucket_limits_mebibytes(bucket_bytes: int, byte_scale: float) -> list[float]:
    """DDP's limits at a byte scale: at its default size the first bucket holds 1 MiB * s.

    bucket_bytes: already scaled; 0 stands for the default.
    """
    default = int(DDP_BUCKET_BYTES * byte_scale)
    limit = bucket_bytes or default
    first = DDP_FIRST_BUCKET_BYTES * byte_scale
    limits = [first, limit] if limit == default else [limit]
    return [max(bytes_, 1) / MIB for bytes_ in limits]
