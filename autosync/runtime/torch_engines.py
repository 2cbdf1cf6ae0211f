"""torch's own engines, for plans whose engine they are: DistributedDataParallel and `fully_shard`
(FSDP2). Their wrapping stands here and nowhere else; so do refusals of models that are sharded
already, which is found without importing what shards them.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup, get_world_size
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from autosync.codes import ENCODINGS, POWERSGD
from autosync.errors import InvalidInput, NotSupported
from autosync.plan.plan_document import (
    DDP_BUCKET_BYTES,
    DDP_FIRST_BUCKET_BYTES,
    EngineName,
    Plan,
)
from autosync.torch_engine import FullyShard
from autosync.units import MIB

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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

POWERSGD_FROM = 2
"""The first iteration whose gradients are packed: torch takes none before, as it keeps an error and
a warm start."""

MESH_NAMES = ("replicate", "shard")

FSDP = ("torch.distributed.fsdp", ("FullyShardedDataParallel", "FSDPModule"))
TENSOR = ("torch.distributed.tensor", ("DTensor",))


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


def check_shardable(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    sharding: FullyShard,
    group: dist.ProcessGroup,
) -> None:
    """
    Raises:
        InvalidInput: an optimizer has stepped, so that its state is of whole parameters.
        NotSupported: a module makes sparse gradients; or shard groups lie in a part of the ranks.
    """
    for optimizer in optimizers:
        if optimizer.state:
            raise InvalidInput(
                f"the optimizer ({type(optimizer).__name__}) holds state of "
                f"{len(optimizer.state)} whole parameters, which fully_shard does not cut.",
                thing="optimizer",
                value=type(optimizer).__name__,
                remedy="Distribute before the first step, and load a checkpoint behind it with "
                "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict.",
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise NotSupported(
                f"module {name!r} makes sparse gradients, which fully_shard does not reduce.",
                thing=f"module {name}",
                value="sparse=True",
                remedy="Leave sparse out, or ship another strategy.",
            )
    if sharding.shard_ranks < group.size() < dist.get_world_size():
        raise NotSupported(
            f"the plan shards over groups of {sharding.shard_ranks} ranks, and all-reduces among "
            f"them: that takes all {dist.get_world_size()} ranks, not a process group of "
            f"{group.size()}.",
            thing="process_group",
            value=group.size(),
            remedy="Leave process_group out, or ship `fsdp2`.",
        )


def unit_modules(
    model: nn.Module, sharding: FullyShard, model_name: Mapping[str, str]
) -> list[list[nn.Module]]:
    """The module of every unit. model_name: of every variable, by the name that the plan has for
    it, which may stand behind another prefix.

    Raises:
        InvalidInput: the model has no such module.
    """
    found: list[list[nn.Module]] = []
    for number, unit in enumerate(sharding.units):
        held = (name for name in model_name if sharding.unit_of(name) == number)
        planned = next(held, f"{unit}.")
        own = model_name.get(planned, planned)
        name = own.removesuffix(planned[len(unit) :])
        try:
            found.append([model.get_submodule(name)])
        except AttributeError:
            raise InvalidInput(
                f"the model has no module {name!r}, which the plan gathers as one.",
                thing="engine.units",
                value=unit,
                remedy="Rank strategies for this model.",
            ) from None
    return found


def mesh_of(sharding: FullyShard, group: dist.ProcessGroup, device: torch.device) -> "DeviceMesh":
    """The ranks of the group, by shard groups where there are several. A collective then."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if sharding.shard_ranks == group.size():
        return DeviceMesh.from_group(group, device.type)
    shape = (group.size() // sharding.shard_ranks, sharding.shard_ranks)
    return init_device_mesh(device.type, shape, mesh_dim_names=MESH_NAMES)


def apply_fully_shard(
    model: nn.Module,
    units: Sequence[Sequence[nn.Module]],
    sharding: FullyShard,
    mesh: "DeviceMesh",
) -> None:
    """Put torch's FSDP2 on a model, whose parameters become DTensors. units: each one's modules."""
    from torch.distributed.fsdp import fully_shard  # loads DTensors

    for modules in units:
        together = modules[0] if len(modules) == 1 else list(modules)
        fully_shard(
            together,
            mesh=mesh,
            reshard_after_forward=sharding.reshard_after_forward,
        )
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def named_values(model: nn.Module) -> dict[str, nn.Parameter]:
    """Also by the names under which a parameter is held a second time."""
    return dict(model.named_parameters(remove_duplicate=False))


def retarget(
    optimizer: Optimizer,
    before: Mapping[str, nn.Parameter],
    after: Mapping[str, nn.Parameter],
) -> Callable[[], None]:
    """Let the optimizer train the parameters of the same names `after`, with no state yet.

    Returns what gives it those of `before` back, and their state.
    """
    name_of = {id(parameter): name for name, parameter in before.items()}
    groups: list[dict[str, Any]] = optimizer.param_groups
    held, state = [group["params"] for group in groups], optimizer.state
    for group in groups:
        group["params"] = [after[name_of[id(parameter)]] for parameter in group["params"]]
    optimizer.state = defaultdict(dict)

    def give_back() -> None:
        for group, params in zip(groups, held, strict=True):
            group["params"] = params
        optimizer.state = state

    return give_back


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
