"""torch's own DistributedDataParallel, for plans whose engine is `ddp`: its wrapping and its bucket
sizes stand here and nowhere else."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from autosync.codes import ENCODINGS, POWERSGD
from autosync.errors import InvalidInput, NotSupported
from autosync.plan.plan_document import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    EngineName,
    Plan,
)
from autosync.units import MIB

SETTLED = {
    "module": "it is the model that `distribute` is given",
    "process_group": "`distribute` has an argument of that name",
    "device_mesh": "`distribute(..., process_group=mesh.get_group(...))` says which ranks",
    "init_sync": "every rank begins with rank 0's values",
    "bucket_cap_mb": "the plan says how large buckets are",
    "bucket_cap_mb_list": "the plan says how large buckets are",
    "delay_all_reduce_named_params": "the plan says when each gradient leaves",
    "param_to_hook_all_reduce": "the plan says when each gradient leaves",
    "mixed_precision": "gradients would travel rounded; torch.autocast computes in half precision",
}
"""Arguments of DistributedDataParallel that are no options here, and what takes their place."""
OF_A_RANK = ("device_ids", "output_device")
"""Options that differ from rank to rank."""
OF_BUFFERS = ("broadcast_buffers", "forward_sync_buffers")
"""Options that leave every rank its own buffers. A plan sends rank 0's."""


def wrap_in_ddp(
    model: nn.Module,
    bucket_bytes: int = 0,
    process_group: dist.ProcessGroup | None = None,
    *,
    share_values: bool = True,
    byte_scale: float = 1.0,
    options: Mapping[str, Any] | None = None,
) -> DistributedDataParallel:
    """The model in torch's DDP.

    bucket_bytes: of the plan, already scaled; 0 stands for torch's default. share_values: begin
    with rank 0's parameters and buffers on every rank. byte_scale: of the model's variables.
    options: of DistributedDataParallel, as `check_options` lets them through.
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
            **(options or {}),
        )
    return DistributedDataParallel(
        model,
        process_group=process_group,
        init_sync=share_values,
        bucket_cap_mb_list=bucket_limits_mebibytes(bucket_bytes, byte_scale),  # type: ignore[arg-type]  # torch multiplies: fractions do
    )


POWERSGD_FROM = 2
"""The first iteration whose gradients are packed: torch takes none before, as it keeps an error and
a warm start."""


def add_hook(
    ddp: DistributedDataParallel, plan: Plan, process_group: dist.ProcessGroup | None = None
) -> None:
    """The communication hook of torch's that packs as the plan's messages are packed; none where
    they travel as they are."""
    packed = {message.encoding for message in plan.messages} - {0}
    if not packed:
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    (code,) = packed
    if code > POWERSGD:
        state = powerSGD_hook.PowerSGDState(
            process_group,
            matrix_approximation_rank=code - POWERSGD,
            start_powerSGD_iter=POWERSGD_FROM,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif ENCODINGS[code] == "fp16":
        ddp.register_comm_hook(process_group, default_hooks.fp16_compress_hook)
    else:
        ddp.register_comm_hook(process_group, half_bfloat)


def half_bfloat(
    group: dist.ProcessGroup | None, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """torch's bf16 hook under another name: by its own name DDP refuses it without an accelerator,
    though gloo reduces bf16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return bf16_compress_hook(group, bucket)  # type: ignore[arg-type]  # None: all ranks


def bucket_limits_mebibytes(bucket_bytes: int, byte_scale: float) -> list[float]:
    """DDP's limits at a byte scale: at its default size the first bucket holds 1 MiB * s.

    bucket_bytes: already scaled; 0 stands for the default.
    """
    default = int(DDP_BUCKET_BYTES * byte_scale)
    limit = bucket_bytes or default
    first = DDP_FIRST_BUCKET_BYTES * byte_scale
    limits = [first, limit] if limit == default else [limit]
    return [max(bytes_, 1) / MIB for bytes_ in limits]


def check_options(options: Mapping[str, Any], engine: EngineName) -> None:
    """engine: of the plan.

    Raises:
        InvalidInput: DistributedDataParallel has no such option.
        NotSupported: the plan, or `distribute` itself, says otherwise.
    """
    known = [name for name in signature(DistributedDataParallel).parameters if name not in SETTLED]
    for name, value in options.items():
        if name in SETTLED:
            raise _refused(name, value, f"{SETTLED[name]}", "Leave it out.")
        if name not in known:
            raise InvalidInput(
                f"DistributedDataParallel has no option {name!r}.",
                thing=f"ddp_options[{name!r}]",
                value=value,
                remedy=f"Options are {', '.join(known)}.",
            )
        if name in OF_BUFFERS and value is False and engine != "ddp":
            why = "this plan sends rank 0's buffers to every rank"
            raise _refused(name, value, why, "Leave it out, or ship the strategy `ddp`.")


def comparable(options: Mapping[str, Any]) -> dict[str, object]:
    """The options that must be alike on every rank, those left out as well."""
    plain = (bool, int, float, str, type(None))
    names = [name for name in signature(DistributedDataParallel).parameters if name not in SETTLED]
    shared = [name for name in names if name not in OF_A_RANK]
    given = {name: options.get(name) for name in shared}
    return {
        f"ddp_options[{name!r}]": value if isinstance(value, plain) else type(value).__name__
        for name, value in given.items()
    }


def for_any_plan(options: Mapping[str, Any]) -> dict[str, Any]:
    """For DDP in place of another plan, which takes parameters that a backward pass leaves out."""
    if options.get("static_graph"):  # finds them by itself
        return dict(options)
    return {"find_unused_parameters": True, **options}


def _refused(name: str, value: object, why: str, remedy: str) -> NotSupported:
    return NotSupported(
        f"ddp_options: {name}={value!r} contradicts the plan: {why}.",
        thing=f"ddp_options[{name!r}]",
        value=value,
        remedy=remedy,
    )
