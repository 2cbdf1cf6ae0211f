"""torch's DistributedDataParallel, for plans whose engine it is (`fully_shard.py` is torch's other
one). Its wrapping stands here and nowhere else; so do refusals of models that are sharded already,
which is found without importing what shards them.
"""

import sys
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup, get_world_size
from torch.nn.parallel import DistributedDataParallel

from autosync.codes import ENCODINGS, POWERSGD
from autosync.errors import InvalidInput, NotSupported
from autosync.plan.plan_document import EngineName, Plan
from autosync.torch_engine import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    DdpArguments,
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
OF_UNUSED = ("find_unused_parameters", "static_graph")
"""Options by which DDP takes parameters that a backward pass leaves out."""
OF_BUFFERS = ("broadcast_buffers", "forward_sync_buffers")
"""Options that leave every rank its own buffers. A plan sends rank 0's."""

POWERSGD_FROM = 2
"""The first iteration whose gradients are packed: torch takes none before, as it keeps an error and
a warm start."""

FSDP = ("torch.distributed.fsdp", ("FullyShardedDataParallel", "FSDPModule"))
TENSOR = ("torch.distributed.tensor", ("DTensor",))


def wrap_in_ddp(
    model: nn.Module,
    bucket_bytes: int = 0,
    process_group: dist.ProcessGroup | None = None,
    *,
    share_values: bool = True,
    byte_scale: float = 1.0,
    arguments: DdpArguments | None = None,
    options: Mapping[str, Any] | None = None,
) -> DistributedDataParallel:
    """The model in torch's DDP.

    bucket_bytes, arguments: of the plan, already scaled; 0 stands for torch's default.
    share_values: begin with rank 0's parameters and buffers on every rank. byte_scale: of the
    model's variables. options: of DistributedDataParallel, as `check_options` lets them through;
    they go before the plan's arguments.

    Raises:
        NotSupported: the plan has a list of bucket sizes, which this torch does not take.
    """
    given: dict[str, Any] = {}
    if arguments is not None and arguments.gradient_as_bucket_view:
        given["gradient_as_bucket_view"] = True
    if arguments is not None and arguments.bucket_limits_bytes:
        check_takes_bucket_lists()
        given["bucket_cap_mb_list"] = [each / MIB for each in arguments.bucket_limits_bytes]
    elif byte_scale != 1.0:
        limits = bucket_limits_mebibytes(bucket_bytes, byte_scale)
        given |= {"bucket_cap_mb_list": limits} if len(limits) > 1 else {"bucket_cap_mb": limits[0]}
    elif bucket_bytes not in (0, DDP_BUCKET_BYTES):
        # At its default, and only then, torch keeps the first bucket small: name no size then.
        given["bucket_cap_mb"] = bucket_bytes / MIB
    return DistributedDataParallel(
        model,
        process_group=process_group,
        init_sync=share_values,
        **{**given, **(options or {})},
    )


def takes_bucket_lists() -> bool:
    """Whether this torch's DDP has sizes for each bucket, `bucket_cap_mb_list`."""
    return "bucket_cap_mb_list" in signature(DistributedDataParallel).parameters


def check_takes_bucket_lists() -> None:
    """Raises NotSupported where this torch's DDP has one size for all buckets."""
    if not takes_bucket_lists():
        raise NotSupported(
            f"the plan has a size for each bucket of DDP, and torch {torch.__version__} has no "
            "bucket_cap_mb_list.",
            thing="plan.ddp.bucket_limits_bytes",
            value=torch.__version__,
            remedy="Use torch 2.13 or later, or ship the strategy with the best single bucket "
            "size: `autosync show` lists it.",
        )


def add_hook(
    ddp: DistributedDataParallel, plan: Plan, process_group: dist.ProcessGroup | None = None
) -> None:
    """The communication hook of torch's that packs as the plan's messages are packed; none where
    they travel as they are."""
    if not (code := encoding_of(plan)):
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

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


def encoding_of(plan: Plan) -> int:
    """Code of how a plan of one encoding packs gradients; 0 where they travel as they are."""
    of_gradients = (each.encoding for each in plan.messages if not each.carries_values)
    return max(of_gradients, default=0)


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
    mesh, parts = parameter.device_mesh, tuple(map(str, parameter.placements))
    return NotSupported(
        f"parameter {name!r} is a DTensor ({', '.join(parts)} over mesh dimensions "
        f"{mesh.mesh_dim_names}): no plan synchronizes parts of tensors over the ranks of a mesh.",
        thing=f"parameter {name}",
        value=parts,
        remedy='Write DistributedDataParallel(model, device_mesh=mesh["dp"]) beside '
        "parallelize_module; or hold the parts as plain parameters of this rank's size, and call "
        'autosync.distribute(..., process_group=mesh["dp"].get_group()).',
    )
