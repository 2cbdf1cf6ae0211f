"""torch's `fully_shard` (FSDP2), for plans whose engine it is: its wrapping stands here and nowhere
else."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.codes import ENCODINGS
from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.updates.optimizers import has_begun, make_first_state
from autosync.torch_engine import WRAPPERS, FullyShard, Kept, modules_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MESH_NAMES = ("replicate", "shard")
POST_FORWARD_MESH = "_get_post_forward_mesh_info"
"""torch's own function that makes the mesh of a smaller group."""
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def check_shardable(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    sharding: FullyShard,
    group: dist.ProcessGroup,
) -> None:
    """
    Raises:
        InvalidInput: an optimizer has stepped, so that its state is of whole parameters.
        NotSupported: a module makes sparse gradients; a parameter is a scalar; or shard groups lie
            in a part of the ranks.
    """
    for optimizer in optimizers:
        if has_begun(optimizer):
            raise InvalidInput(
                f"the optimizer ({type(optimizer).__name__}) holds state of "
                f"{len(optimizer.state)} whole parameters, which fully_shard does not cut.",
                thing="optimizer",
                value=type(optimizer).__name__,
                remedy="Distribute before the first step, and load a checkpoint behind it by "
                "autosync.TrainingState, which has also saved it.",
            )
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.sparse
            and module.weight.requires_grad
        ):
            raise NotSupported(
                f"module {name!r} makes sparse gradients, which fully_shard does not reduce.",
                thing=f"module {name}",
                value="sparse=True",
                remedy="Leave sparse out, or ship another strategy.",
            )
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise NotSupported(
                f"parameter {name!r} has no dimension that fully_shard could cut.",
                thing=f"parameter {name}",
                value=tuple(parameter.shape),
                remedy="Give it the shape (1,), or ship another strategy.",
            )
    if min(sharding.group_sizes) < group.size() < dist.get_world_size():
        raise NotSupported(
            f"the plan shards over groups of {min(sharding.group_sizes)} ranks within the process "
            f"group: that takes all {dist.get_world_size()} ranks, not a process group of "
            f"{group.size()}.",
            thing="process_group",
            value=group.size(),
            remedy="Leave process_group out, or ship `fsdp2`.",
        )


def unit_modules(
    model: nn.Module, sharding: FullyShard, model_name: Mapping[str, str]
) -> list[list[nn.Module]]:
    """The modules of every unit. model_name: of every variable, by the name that the plan has for
    it, which may stand behind another prefix, or have words of wrappers in it.

    Raises:
        InvalidInput: the model has no such module, or two units share a parameter.
    """
    found: list[list[nn.Module]] = []
    for unit in sharding.units:
        found.append([])
        for module in modules_of(unit):
            planned = next((n for n in model_name if n.startswith(f"{module}.")), f"{module}.")
            own = model_name.get(planned, planned)
            name = _module_around(own, planned[len(module) + 1 :]) or module
            try:
                found[-1].append(model.get_submodule(name))
            except AttributeError:
                raise InvalidInput(
                    f"the model has no module {name!r}, which the plan gathers as one.",
                    thing="engine.units",
                    value=module,
                    remedy="Rank strategies for this model.",
                ) from None
    _check_apart(model, found)
    return found


def _module_around(variable: str, inner: str) -> str:
    """The module in which a variable is called `inner`, words of wrappers aside; empty where that
    is no module of the model, or all of it."""
    parts = variable.split(".")
    left = sum(part not in WRAPPERS for part in inner.split("."))
    while parts and left:
        left -= parts.pop() not in WRAPPERS
    return ".".join(parts)


def _check_apart(model: nn.Module, units: Sequence[Sequence[nn.Module]]) -> None:
    """Raises InvalidInput where a parameter of a unit is read by a module outside of it, too: there
    `fully_shard` would leave the old one."""
    unit_of = {id(module): unit for unit, held in enumerate(units) for module in held}
    seen: dict[int, tuple[int, str]] = {}
    homes: dict[str, int] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        around = homes.get(name.rpartition(".")[0], len(units))
        homes[name] = unit_of.get(id(module), around)
        for own, parameter in module.named_parameters(name, recurse=False):
            unit, first = seen.setdefault(id(parameter), (homes[name], own))
            if unit != homes[name]:
                raise InvalidInput(
                    f"parameters {first!r} and {own!r} are one, but the plan gathers them in "
                    "different units.",
                    thing="engine.units",
                    value=(first, own),
                    remedy="Leave both to the root: rank strategies for this model as it is.",
                )


def mesh_of(ranks: int, group: dist.ProcessGroup, device: torch.device) -> "DeviceMesh":
    """The ranks of the group, by groups of `ranks` where there are several. A collective then."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    if ranks == group.size():
        return DeviceMesh.from_group(group, device.type)
    shape = (group.size() // ranks, ranks)
    return init_device_mesh(device.type, shape, mesh_dim_names=MESH_NAMES)


def mesh_of_new_groups(
    ranks: int, group: dist.ProcessGroup, device: torch.device, timeout: timedelta
) -> tuple["DeviceMesh", list[dist.ProcessGroup]]:
    """The same where `group`, of all ranks, is not torch's default one; and the process groups that
    were opened for it, which the caller ends. A collective of all ranks.

    DTensor remembers meshes by their ranks and names. The names say which process group, so that a
    later mesh of the same ranks is not taken for this one, whose groups have ended.

    timeout: of the collectives on these process groups.
    """
    from torch.distributed.device_mesh import DeviceMesh

    *names, shard_name = (f"{name}_{group.group_name}" for name in MESH_NAMES)
    if ranks == group.size():
        return DeviceMesh.from_group(group, device.type, mesh_dim_names=(shard_name,)), []
    table = torch.arange(group.size(), device="cpu").view(-1, ranks)
    opened = []
    for members in (table.T, table):
        own, _ = dist.new_subgroups_by_enumeration(members.tolist(), timeout)
        opened.append(own)
    names.append(shard_name)
    mesh = DeviceMesh.from_group(opened, device.type, table, mesh_dim_names=tuple(names))
    return mesh, opened


def copy_without_values(model: nn.Module) -> nn.Module:
    """A copy of a model whose parameters take no memory, on torch's meta device, until `take_parts`
    gives each rank its parts of them. Buffers are copied.

    Raises:
        NotSupported: the model holds something that cannot be copied.
    """
    memo: dict[int, Any] = {
        id(one): nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad)
        for one in model.parameters()
    }
    try:
        copied: nn.Module = copy.deepcopy(model, memo)
    except Exception as error:  # whatever the user's model holds may refuse in its own way
        raise NotSupported(
            f"the model ({type(model).__name__}) cannot be copied, and fully_shard is tried on a "
            f"copy: {type(error).__name__}: {error}",
            thing="model",
            value=type(model).__name__,
            remedy="Keep what cannot be copied outside of the model, or tune without the space "
            "fsdp2.",
        ) from None
    return copied


def take_parts(copied: nn.Module, values: Mapping[str, nn.Parameter], mesh: "DeviceMesh") -> None:
    """Give a copy without values, under `fully_shard`, this rank's parts. values: whole ones, by
    name."""
    device = next(iter(values.values())).device

    def with_memory(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, device=device) if value.is_meta else value

    copied._apply(with_memory)  # as `to_empty`, which would empty buffers as well
    coordinate = mesh.get_coordinate()
    assert coordinate is not None  # the mesh has all ranks
    own: Any
    with torch.no_grad():
        for name, own in copied.named_parameters():
            parts = values[name].chunk(mesh.size(mesh.ndim - 1))
            if coordinate[-1] < len(parts):
                own.to_local().copy_(parts[coordinate[-1]])


def apply_fully_shard(
    model: nn.Module,
    units: Sequence[Sequence[nn.Module]],
    sharding: FullyShard,
    meshes: Mapping[int, "DeviceMesh"],
    encoding: int = 0,
) -> None:
    """Put torch's FSDP2 on a model, whose parameters become DTensors and which gets a `no_sync()`.

    units: each one's modules; none where the parameters of a unit are held by another one's.
    meshes: by each of the sharding's group sizes. encoding: code of the type in which gradients are
    reduced.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # loads DTensors

    own = next((each.dtype for each in model.parameters() if each.requires_grad), None)
    computed = HALVES.get(sharding.param_dtype)
    reduced = HALVES.get(ENCODINGS[encoding], own if computed else None)
    policy = MixedPrecisionPolicy(computed, reduced)
    of_root = MixedPrecisionPolicy(computed, reduced, own if computed else None)
    mesh = meshes[sharding.shard_ranks]
    depth = {id(module): name.count(".") for name, module in model.named_modules()}
    numbers = [number for number, modules in enumerate(units) if modules]
    for number in sorted(numbers, key=lambda n: -max(depth[id(each)] for each in units[n])):
        modules = list(units[number])
        value = sharding.resharding[number]
        with nullcontext() if isinstance(value, bool) else _shared_mesh(meshes[value]):
            fully_shard(
                modules[0] if len(modules) == 1 else modules,
                mesh=mesh,
                mp_policy=policy,
                reshard_after_forward=value,
            )
    fully_shard(model, mesh=mesh, mp_policy=of_root, reshard_after_forward=False)
    _prefetch([model, *(units[number][0] for number in numbers)], sharding)
    model.__dict__["no_sync"] = partial(batch_without_update, model, sharding.kept_between_batches)


@contextmanager
def batch_without_update(model: Any, kept: Kept) -> Iterator[None]:
    """`model.no_sync()` of a model under `fully_shard`: around the forward and backward pass of
    every batch but the last before an update. kept: see `FullyShard`; where it is nothing, the
    batch reduces its gradients like the last one."""
    model.set_requires_gradient_sync(not kept)
    model.set_reshard_after_backward(kept != "values")
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)


@contextmanager
def _shared_mesh(mesh: "DeviceMesh") -> Iterator[None]:
    """torch opens process groups for every unit that reshards to a smaller group. Units within this
    block take those of a mesh, which others may share."""
    from torch.distributed.fsdp._fully_shard import _fully_shard as wrapping
    from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo

    opened_by_torch = getattr(wrapping, POST_FORWARD_MESH)

    def shared(reshard_after_forward: int, mesh_info: Any) -> Any:
        return HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)

    setattr(wrapping, POST_FORWARD_MESH, shared)
    try:
        yield
    finally:
        setattr(wrapping, POST_FORWARD_MESH, opened_by_torch)


def _prefetch(passed: Sequence[Any], sharding: FullyShard) -> None:
    """Ask for the values of more units than torch does by itself. passed: a module of each unit, in
    the order of the forward pass."""
    forward, backward = sharding.forward_prefetch, sharding.backward_prefetch
    for place, module in enumerate(passed):
        if forward > 1:
            module.set_modules_to_forward_prefetch(passed[place + 1 : place + 1 + forward])
        if backward > 1:  # begins with the root, then goes from the last unit to the first
            units = passed[1:place] if place else passed[1:]
            module.set_modules_to_backward_prefetch(units[::-1][:backward])


def named_values(model: nn.Module) -> dict[str, nn.Parameter]:
    """Also by the names under which a parameter is held a second time."""
    return dict(model.named_parameters(remove_duplicate=False))


def retarget(
    optimizer: Optimizer,
    before: Mapping[str, nn.Parameter],
    after: Mapping[str, nn.Parameter],
) -> Callable[[], None]:
    """Let the optimizer train the parameters of the same names `after`, which has none but the
    first state yet.

    Returns what gives it those of `before` back, and their state. Where the device has no room for
    the first state, it keeps them.
    """
    name_of = {id(parameter): name for name, parameter in before.items()}
    groups: list[dict[str, Any]] = optimizer.param_groups
    held, state = [group["params"] for group in groups], optimizer.state

    def give_back() -> None:
        for group, params in zip(groups, held, strict=True):
            group["params"] = params
        optimizer.state = state

    for group in groups:
        group["params"] = [
            after[name_of[id(p)]] if id(p) in name_of else p  # frozen, and not of the model
            for p in group["params"]
        ]
    optimizer.state = defaultdict(dict)
    try:
        make_first_state(optimizer)
    except BaseException:  # whatever it was, nothing else gives them back
        give_back()
        raise
    return give_back
