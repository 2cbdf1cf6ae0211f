"""Puts a plan's placed modules on their ranks: the seam `division` of `extensions.seams`."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NoReturn, Protocol, runtime_checkable

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.placement.document import PlacedModule, modules_of
from autosync.extensions.placement.placed_forward import PlacedForward
from autosync.extensions.placement.placed_values import PlacedParameter, PlacementAttachment
from autosync.extensions.placement.replayed_passes import PlacedPasses
from autosync.extensions.placement.row_exchange import RowExchange
from autosync.extensions.seams import Divide
from autosync.plan import Plan
from autosync.runtime.device.model_tensors import device_of
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.hooks.model_hooks import REDUCE
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.process_groups import Groups


@runtime_checkable
class PlacedStandIn(Protocol):
    """A model that stands in for another in trials: it has variables and passes, but no modules;
    `PlacedPasses` does what placed modules would make of its passes."""

    def parameters_of(self, module: str) -> Sequence[nn.Parameter]:
        """Those that stand for the variables of a module of the other model."""
        ...

    def divide(self, division: Callable[[Domain, float], PlacedPasses]) -> Callable[[], None]:
        """From now on that runs its passes, until what this returns is called. division: of the
        domain and the byte scale."""
        ...


def prepare(model: nn.Module, optimizers: Sequence[Optimizer], plan: Plan, backend: str) -> Divide:
    """
    Raises:
        InvalidInput: the model has no such module.
        NotSupported: a module normalizes over its batch or shares a parameter; several optimizers,
            a GPU.
    """
    modules = modules_of(plan)
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
            value=[placed.module for placed in modules[:8]],
            remedy=remedy,
        )
    found = {}
    if not isinstance(model, PlacedStandIn):
        found = {placed: _named_module(model, placed) for placed in modules}
    for name, module in found.values():
        _check_module(model, name, module)
    return partial(attach, model, found, optimizers[0], plan)


def attach(
    model: nn.Module,
    found: dict[PlacedModule, tuple[str, nn.Module]],
    optimizer: Optimizer,
    plan: Plan,
    group: dist.ProcessGroup,
    groups: Groups,
    store: Store,
    trace: ExecutionTrace | None = None,
) -> PlacementAttachment:
    """See `seams.Divide`. found: the placed modules, by the names that the model has for them; none
    of a model that stands in for another. `release` has to follow."""
    everyone = tuple(range(group.size()))
    dealing = groups.get("placement", everyone, "gloo")
    exchange = RowExchange(dealing, group.rank(), plan.shares, trace)
    meetings = groups.get("placement-calls", everyone, "gloo")
    calls = CollectiveCalls(meetings, PrefixStore("placement", store))
    apart = [placed for placed in modules_of(plan) if len(placed.ranks) < group.size()]
    named: list[tuple[PlacedModule, nn.Module, str, nn.Parameter]]
    if isinstance(model, PlacedStandIn):
        named = [(one, model, "", p) for one in apart for p in model.parameters_of(one.module)]
    else:
        named = [
            (placed, module, key, parameter)
            for placed, (_, module) in found.items()
            for key, parameter in module.named_parameters(remove_duplicate=False)
            if placed in apart and parameter.requires_grad
        ]
    parameters = [
        PlacedParameter(
            module, key, parameter, parameter.shape, placed.ranks[0], exchange.rank in placed.ranks
        )
        for placed, module, key, parameter in named
    ]
    made = PlacementAttachment(parameters, optimizer, exchange, calls)
    if isinstance(model, PlacedStandIn):
        made.undo.callback(model.divide(partial(PlacedPasses, modules_of(plan), exchange)))
        return made
    with ExitStack() as undo:
        undo.callback(made.remove)
        for placed, (name, module) in found.items():
            before = {key: held for key, held in vars(module).items() if key == "forward"}
            made.undo.callback(module.__dict__.update, before)
            made.undo.callback(module.__dict__.pop, "forward", None)
            module.__dict__["forward"] = PlacedForward(name, module, placed, exchange)
        made.watch()
        for each in (*(found[placed][1] for placed in apart), *([optimizer] if apart else [])):
            made.undo.callback(each.__dict__.pop, REDUCE, None)
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
