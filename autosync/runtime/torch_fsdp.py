"""torch's own `fully_shard` (FSDP2), for plans whose engine it is: its wrapping, and the optimizer
that then trains parts of parameters, stand here and nowhere else."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.torch_engine import FullyShard

MESH_NAMES = ("replicate", "shard")


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


def mesh_of(sharding: FullyShard, group: dist.ProcessGroup, device: torch.device) -> DeviceMesh:
    """The ranks of the group, by shard groups where there are several. A collective then."""
    if sharding.shard_ranks == group.size():
        return DeviceMesh.from_group(group, device.type)
    shape = (group.size() // sharding.shard_ranks, sharding.shard_ranks)
    return init_device_mesh(device.type, shape, mesh_dim_names=MESH_NAMES)


def share_values(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Every rank begins with rank 0's parameters and buffers."""
    source = dist.get_global_rank(group, 0)
    for value in chain(model.parameters(), model.buffers()):
        dist.broadcast(value.detach(), source, group)


def apply_fully_shard(
    model: nn.Module,
    units: Sequence[Sequence[nn.Module]],
    sharding: FullyShard,
    mesh: DeviceMesh,
) -> None:
    """Put torch's FSDP2 on a model, whose parameters become DTensors. units: each one's modules."""
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
