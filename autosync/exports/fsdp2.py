"""Settings of torch's FSDP2: which modules `fully_shard` takes together."""

from graphlib import CycleError, TopologicalSorter
from typing import Any

from autosync.domain import Domain
from autosync.exports.fully_shard import HALF_TYPES, fully_shard_settings
from autosync.exports.settings import (
    FrameworkSettings,
    GradientMessage,
    names_of,
    one_encoding,
    reduce_scattered_messages,
    refused,
    schedule_deviations,
)
from autosync.graph import ModelGraph
from autosync.strategy import Encoding, ReduceScatter, Strategy

Modules = tuple[str, ...]
"""By name; the empty name is the model itself."""


def fsdp2_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """What `fully_shard` is called with, call by call.

    Raises:
        InvalidStrategy, NotSupported: FSDP2 cannot run it; names the variable and why.
    """
    if strategy.engine is not None:
        return fully_shard_settings(strategy, strategy.engine, domain)
    messages = reduce_scattered_messages(strategy, domain, "fsdp2")
    encoding = one_encoding(messages, "fsdp2")
    users = _users(domain.graph)
    modules = [_modules(message, users) for message in messages]
    _check_apart(messages, modules, domain)
    calls = _bottom_up([each for each in modules if "" not in each])
    device = "cuda" if domain.cluster.backend == "nccl" else "cpu"
    settings: dict[str, Any] = {
        "mesh": {"device_type": device, "mesh_shape": [domain.world_size]},
        "fully_shard": [list(names) for names in calls],
        "reshard_after_forward": False,
        "reduce_dtype": HALF_TYPES.get(encoding.name),
    }
    return FrameworkSettings(
        framework="fsdp2",
        strategy_id=strategy.id,
        deviations=tuple(_deviations(strategy, messages, domain)),
        settings=settings,
        environment={},
        snippet=_snippet(calls, device, domain.world_size, encoding),
    )


def _modules(message: GradientMessage, users: list[Modules]) -> Modules:
    """Those whose parameters the message holds, in the order of the model."""
    return tuple(dict.fromkeys(name for i in sorted(message.variables) for name in users[i]))


def _users(graph: ModelGraph) -> list[Modules]:
    """By variable, the modules that FSDP2 must take with it: its own, and those that read it as
    theirs. A tied weight is a parameter of several modules; attention computes with the weight of
    its output projection, whose own forward never runs."""
    users = [dict.fromkeys([variable.name.rpartition(".")[0]]) for variable in graph.variables]
    owners = {name for names in users for name in names}
    for operation in graph.operations:
        reader = operation.name.rpartition(".")[0]
        for index in operation.variables:
            owner = next(iter(users[index]))
            tied = reader and owner and not f"{reader}.".startswith(f"{owner}.")
            if tied and (reader in owners or not owner.startswith(f"{reader}.")):
                users[index][reader] = None
    return [tuple(names) for names in users]


def _check_apart(messages: list[GradientMessage], modules: list[Modules], domain: Domain) -> None:
    """A module's parameters, tied ones too, are in one message. Raises NotSupported."""
    seen: dict[str, int] = {}
    for number, names in enumerate(modules):
        for name in names:
            if name in seen:
                one = names_of(messages[seen[name]], domain)[0]
                other = names_of(messages[number], domain)[0]
                shown = f"module {name!r}" if name else "the model itself"
                raise refused(
                    "fsdp2",
                    f"{shown} has parameters in two messages (those of {one!r} and {other!r}), "
                    "and FSDP2 takes a module's parameters together, tied ones too",
                    thing=f"module {name}",
                    value=[one, other],
                )
            seen[name] = number


def _bottom_up(calls: list[Modules]) -> list[Modules]:
    """Inner modules before those around them, which take what is left of theirs.

    Raises:
        NotSupported: of two messages each holds a module inside one of the other's.
    """
    home = {name: number for number, names in enumerate(calls) for name in names}
    inner: dict[int, set[int]] = {number: set() for number in range(len(calls))}
    for name, number in home.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            around = home.get(".".join(parts[:end]), number)
            if around != number:
                inner[around].add(number)
    try:
        return [calls[number] for number in TopologicalSorter(inner).static_order()]
    except CycleError as error:
        names = [calls[number][0] for number in error.args[1][:2]]
        raise refused(
            "fsdp2",
            f"the messages of modules {names[0]!r} and {names[1]!r} hold modules inside each "
            "other's, and FSDP2 takes inner modules first",
            thing=f"module {names[0]}",
            value=names,
        ) from None


def _deviations(strategy: Strategy, messages: list[GradientMessage], domain: Domain) -> list[str]:
    said = schedule_deviations(strategy, messages, "fsdp2")
    world = domain.world_size
    uneven = [v.name for v in domain.graph.variables if not v.shape or v.shape[0] % world]
    if uneven:
        said.append(
            f"FSDP2 cuts each parameter by rows and fills up {len(uneven)} of them (such as "
            f"{uneven[0]!r}) to a multiple of {world}; the strategy cuts whole messages."
        )
    synchronizers = [message.synchronizer for message in messages]
    if not all(isinstance(each, ReduceScatter) and each.sharded_update for each in synchronizers):
        said.append(
            "FSDP2 gathers new values, and each rank updates its part alone; the strategy gathers "
            "gradients, and each rank updates everything."
        )
    if not strategy.schedule.overlap_forward:
        said.append(
            "FSDP2 gathers values within the next forward pass; the strategy before it begins."
        )
    if (batches := domain.accumulate) > 1:
        said.append(
            f"FSDP2 reduces the gradients of each of the {batches} batches of an update, the "
            "strategy their sum, once: call model.set_requires_gradient_sync(last) before each "
            "forward pass."
        )
    return said


def _snippet(calls: list[Modules], device: str, world: int, encoding: Encoding) -> str:
    half = HALF_TYPES.get(encoding.name)
    imported, options = "fully_shard", "mesh=mesh, reshard_after_forward=False"
    if half:
        imported = "MixedPrecisionPolicy, fully_shard"
        options += f", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.{half})"
    return "\n".join(
        [
            *(["import torch"] if half else []),
            "from torch.distributed.device_mesh import init_device_mesh",
            f"from torch.distributed.fsdp import {imported}",
            "",
            f"mesh = init_device_mesh({device!r}, ({world},))",
            f"options = dict({options})",
            "for names in [",
            *(f"    {list(names)!r}," for names in calls),
            "]:",
            "    fully_shard([model.get_submodule(name) for name in names], **options)",
            "fully_shard(model, **options)",
            "# make the optimizer after this: the model has other parameters than before",
            "",
        ]
    )
