"""Puts a plan's placed modules on their ranks, and takes them off again."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.placement.document import PlacedModule
from autosync.extensions.placement.placed_forward import PlacedForward
from autosync.extensions.placement.placed_values import PlacedParameter, PlacedValues
from autosync.extensions.placement.row_exchange import RowExchange
from autosync.extensions.placement.stand_in import PlacedStandIn
from autosync.plan import Plan
from autosync.runtime.device.model_device import device_of
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks.gradient_hooks import Removable
from autosync.runtime.hooks.plain_copies import REDUCE
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.process_groups import Groups


@dataclass(slots=True)
class PlacedModules:
    """At work. values: of those that some ranks do not hold. forwards: the modules whose forward
    deals samples, each with what its `__dict__` had in that place, if anything. uncopied: objects
    of which a copy is refused."""

    values: PlacedValues
    forwards: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)
    uncopied: list[object] = field(default_factory=list)
    handles: list[Removable] = field(default_factory=list)

    def release(self) -> None:
        """Parameters that this rank does not hold lose their values, so not before all ranks have
        placed their modules."""
        self.values.release()

    def give_back(self, with_state: bool = True) -> None:
        """Every rank holds every variable again, and its optimizer state where that is wanted. A
        collective."""
        self.values.give_back(with_state)

    def remove(self) -> None:
        """Modules run on every rank again; values are where they are."""
        for module, before in self.forwards:
            module.__dict__.pop("forward", None)
            module.__dict__.update(before)
        self.forwards.clear()
        for each in self.uncopied:
            each.__dict__.pop(REDUCE, None)
        self.uncopied.clear()
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def check_placeable(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    plan: Plan,
    backend: str,
) -> dict[PlacedModule, tuple[str, nn.Module]]:
    """The placed modules and what the model calls them, none of a model that stands in for another;
    the same on every rank.

    Raises:
        InvalidInput: the model has no such module.
        NotSupported: a module normalizes over its batch or shares a parameter; several optimizers,
            a GPU.
    """
    if not plan.placement:
        return {}
    why = remedy = ""
    if len(optimizers) > 1:
        why, remedy = f"{len(optimizers)} optimizers train the model", "Give one with groups."
    elif device_of(model).type != "cpu" or backend != "gloo":
        why = f"the model is on {device_of(model)} under {backend}"
        remedy = "Placed modules run in host memory over gloo."
    if why:
        raise NotSupported(
            f"the plan places modules on ranks of their own, but {why}.",
            thing="plan.placement",
            value=[placed.module for placed in plan.placement[:8]],
            remedy=remedy,
        )
    if isinstance(model, PlacedStandIn):
        return {}
    found = {placed: _named_module(model, placed) for placed in plan.placement}
    for name, module in found.values():
        _check_module(model, name, module)
    return found


def place_modules(
    model: nn.Module,
    found: dict[PlacedModule, tuple[str, nn.Module]],
    optimizer: Optimizer,
    plan: Plan,
    group: dist.ProcessGroup,
    groups: Groups,
    store: Store,
    trace: ExecutionTrace | None = None,
) -> PlacedModules:
    """found: of `check_placeable`. store: keys of one attached plan only. trace: notes deals.
    Collective: every rank opens the same process groups. `release` has to follow. When it raises,
    modules are as they were before."""
    everyone = tuple(range(group.size()))
    dealing = groups.get("placement", everyone, "gloo")
    exchange = RowExchange(dealing, group.rank(), plan.shares, trace)
    meetings = groups.get("placement-calls", everyone, "gloo")
    calls = CollectiveCalls(meetings, PrefixStore("placement", store))
    if isinstance(model, PlacedStandIn):
        standing = [
            PlacedParameter(
                model,
                "",
                parameter,
                parameter.shape,
                placed.ranks[0],
                exchange.rank in placed.ranks,
            )
            for placed in plan.placement
            if len(placed.ranks) < group.size()
            for parameter in model.parameters_of(placed.module)
        ]
        values = PlacedValues(standing, optimizer, exchange, calls)
        return PlacedModules(values, handles=[model.place(plan.placement, exchange)])
    parameters = [
        PlacedParameter(
            module, key, parameter, parameter.shape, placed.ranks[0], exchange.rank in placed.ranks
        )
        for placed, (_, module) in found.items()
        if len(placed.ranks) < group.size()
        for key, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    ]
    values = PlacedValues(parameters, optimizer, exchange, calls)
    made = PlacedModules(values)
    with ExitStack() as undo:
        undo.callback(made.remove)
        for placed, (name, module) in found.items():
            forward = PlacedForward(name, module, placed, exchange)
            before = {key: held for key, held in vars(module).items() if key == "forward"}
            made.forwards.append((module, before))
            module.__dict__["forward"] = forward
        for handle in values.watch():
            made.handles.append(handle)
        apart = [one for placed, (_, one) in found.items() if len(placed.ranks) < group.size()]
        for each in (*apart, *([optimizer] if apart else [])):
            made.uncopied.append(each)
            each.__dict__[REDUCE] = _refuse_copy
        undo.pop_all()
    return made


def _refuse_copy(protocol: object) -> NoReturn:
    """In the place of `__reduce_ex__`, which Python calls to pickle or copy."""
    raise NotSupported(
        "a model with placed modules, or its optimizer, was copied or pickled: no rank holds all "
        "of it.",
        thing="plan.placement",
        remedy="Save model.state_dict() and optimizer.state_dict(), on every rank; or copy before "
        "autosync.distribute or behind autosync.detach.",
    )


def _named_module(model: nn.Module, placed: PlacedModule) -> tuple[str, nn.Module]:
    """A graph is often recorded from a wrapper around the model, or the model is in one itself."""
    modules = dict(model.named_modules())
    if (exact := modules.get(placed.module)) is not None:
        return placed.module, exact
    alike = [
        name
        for name in modules
        if name and (name.endswith(f".{placed.module}") or placed.module.endswith(f".{name}"))
    ]
    longest = max(map(len, alike), default=0)
    best = [name for name in alike if len(name) == longest]
    if len(best) != 1:
        raise InvalidInput(
            f"the plan places module {placed.module!r}, which the model "
            + (f"may have as {best[0]!r} or {best[1]!r}." if best else "does not have."),
            thing=f"placement of {placed.module}",
            value=placed.module,
            remedy="Place modules of this model.",
        )
    return best[0], modules[best[0]]


def _check_module(model: nn.Module, name: str, module: nn.Module) -> None:
    if type(module).forward is nn.Module.forward:
        inner = next((f"{name}.{each}" for each in module._modules), name)
        raise NotSupported(
            f"module {name!r} ({type(module).__name__}) is placed, but it only holds others and is "
            "never called.",
            thing=f"placement of {name}",
            value=name,
            remedy=f"Place what it holds, such as {inner!r}.",
        )
    for inner, part in module.named_modules(prefix=name):
        if isinstance(part, _BatchNorm):
            raise NotSupported(
                f"module {name!r} is placed, but {inner!r} ({type(part).__name__}) normalizes over "
                "the samples of its replica's batch.",
                thing=f"placement of {name}",
                value=inner,
                remedy="Leave it with the replicas.",
            )
    mine = {id(parameter) for parameter in module.parameters()}
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in mine and not other.startswith(f"{name}."):
            raise NotSupported(
                f"module {name!r} is placed, but its parameter is {other!r}, too.",
                thing=f"placement of {name}",
                value=other,
                remedy="Place the smallest module that holds all its readers.",
            )
