"""Puts a plan's placed modules on their ranks: the seam `division` of `extensions.seams`.

Values and optimizer state of placed modules are held by their own ranks while training, and are
whole on every rank in a checkpoint and after `autosync.detach`. On other ranks a parameter has no
element and is frozen, so that a script that reads it outside of its module fails on the shape, and
no optimizer makes state for it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.extensions.placement.document import PlacedModule, modules_of
from autosync.extensions.placement.placed_forward import PlacedForward
from autosync.extensions.placement.replayed_passes import PlacedPasses
from autosync.extensions.placement.row_exchange import RowExchange
from autosync.extensions.seams import Divide
from autosync.plan import Plan
from autosync.runtime.bundle_fit import modules_alike
from autosync.runtime.device.model_tensors import device_of
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.hooks.model_hooks import REDUCE, Removable
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.tensor_exchange import exchange_states
from autosync.runtime.updates.optimizers import held_state


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


@dataclass(frozen=True, slots=True)
class PlacedParameter:
    """key: in its module's state_dict. shape, strides: where it is held. source: the first rank
    that holds it."""

    module: nn.Module
    key: str
    parameter: nn.Parameter
    shape: torch.Size
    strides: tuple[int, ...]
    source: int
    is_held: bool

    def laid_out(self, values: Tensor) -> Tensor:
        """Values of its shape, in the order in memory that it had."""
        made = values.new_empty_strided(self.shape, self.strides)
        return made.copy_(values)


class PlacementAttachment:
    """Placed modules at work. parameters: of those that some ranks do not hold. exchange: between
    all ranks. calls: where they meet before they gather. undo: takes back what was done to modules
    and optimizer."""

    def __init__(
        self,
        parameters: Sequence[PlacedParameter],
        optimizer: Optimizer,
        exchange: RowExchange,
        calls: CollectiveCalls,
    ):
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._exchange = exchange
        self._calls = calls
        self.undo = ExitStack()

    def remove(self) -> None:
        """Modules run on every rank again; values are where they are."""
        self.undo.close()

    def release(self) -> None:
        """Parameters that this rank does not hold lose their values, so not before all ranks have
        placed their modules."""
        for placed in self._elsewhere():
            placed.parameter.grad = None
            placed.parameter.requires_grad_(False)
            placed.parameter.data = placed.parameter.data.new_empty(0)
            held_state(self._optimizer).pop(placed.parameter, None)

    def give_back(self, with_state: bool = True) -> None:
        """Every rank holds every variable again, trained or frozen as where it was held. A
        collective. with_state: the optimizer's state, too; else that of these variables is gone on
        every rank."""
        if not self._parameters:
            return
        self._calls.meet("detach()")
        state = self._gathered_state() if with_state else {}
        places = self._places()
        trained = self._exchange.gather([each.parameter.requires_grad for each in self._parameters])
        for number, placed in enumerate(self._parameters):
            value = self._value(placed)
            if not with_state:
                held_state(self._optimizer).pop(placed.parameter, None)
            if not placed.is_held:
                placed.parameter.data = placed.laid_out(value)
                placed.parameter.requires_grad_(bool(trained[placed.source][number]))
                if (of_it := state.get(places.get(id(placed.parameter), -1))) is not None:
                    held_state(self._optimizer)[placed.parameter] = of_it

    def renew(self) -> None:
        """Parameters that this rank does not hold have their shape again and are trained, but with
        zeros for values: a peer that holds them may be gone. Where all were given back, nothing
        changes."""
        for placed in self._elsewhere():
            if placed.parameter.shape != placed.shape:
                zeros = placed.parameter.data.new_zeros(placed.shape)
                placed.parameter.data = placed.laid_out(zeros)
                placed.parameter.requires_grad_(True)

    def watch(self) -> None:
        """Give whole state dicts, and take parts of what is loaded."""
        for module in {id(placed.module): placed.module for placed in self._parameters}.values():
            self._add(module.register_state_dict_post_hook(_function(self._fill)))
            self._add(module.register_load_state_dict_pre_hook(_function(self._take_part)))
        if self._parameters:
            optimizer = self._optimizer
            self._add(optimizer.register_state_dict_post_hook(self._fill_optimizer_state))
            self._add(optimizer.register_load_state_dict_pre_hook(self._take_optimizer_state))

    def _add(self, handle: Removable) -> None:
        self.undo.callback(handle.remove)

    def _elsewhere(self) -> list[PlacedParameter]:
        return [placed for placed in self._parameters if not placed.is_held]

    def _value(self, placed: PlacedParameter) -> Tensor:
        """A whole tensor on every rank: where it is held, its own values. A collective."""
        own = placed.parameter.detach()
        value = own.contiguous() if placed.is_held else own.new_empty(placed.shape)
        return self._exchange.broadcast(value, placed.source)

    def _fill(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        with self._exchange.exchanging():
            self._calls.meet("model.state_dict()")
        for placed in self._parameters:
            if placed.module is module:
                value = self._value(placed)
                if not placed.is_held:
                    state[prefix + placed.key] = value

    def _take_part(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        for placed in self._elsewhere():
            given = state.get(prefix + placed.key)
            if placed.module is not module or given is None:
                continue
            if given.shape != placed.shape:
                errors.append(
                    f"size mismatch for {prefix + placed.key}: {tuple(given.shape)} in the "
                    f"checkpoint, {tuple(placed.shape)} in the model."
                )
            state[prefix + placed.key] = placed.parameter.detach()

    def _places(self) -> dict[int, int]:
        """The number that torch's state dicts give each parameter."""
        held = (p for group in self._optimizer.param_groups for p in group["params"])
        return {id(parameter): place for place, parameter in enumerate(held)}

    def _gathered_state(self) -> dict[int, Any]:
        """Of all placed parameters, by their numbers. A collective."""
        places = self._places()
        held = held_state(self._optimizer)
        mine = [
            ((places[id(placed.parameter)],), held[placed.parameter])
            for placed in self._parameters
            if placed.source == self._exchange.rank and placed.parameter in held
        ]
        return {place: state for (place,), state in exchange_states(self._exchange.group, mine)}

    def _fill_optimizer_state(
        self, optimizer: Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        with self._exchange.exchanging():
            self._calls.meet("optimizer.state_dict()")
            gathered = self._gathered_state()
        whole = gathered | state_dict["state"]
        return {**state_dict, "state": dict(sorted(whole.items()))}

    def _take_optimizer_state(
        self, optimizer: Optimizer, state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        places = self._places()
        absent = {places.get(id(placed.parameter)) for placed in self._elsewhere()}
        kept = {p: state for p, state in state_dict["state"].items() if p not in absent}
        return {**state_dict, "state": kept}


def _function(method: Callable[..., None]) -> Callable[..., None]:
    """torch marks the hooks that it is given, which methods do not take."""
    return lambda *arguments: method(*arguments)


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
    monitor: Monitor,
) -> PlacementAttachment:
    """See `seams.Divide`. found: the placed modules, by the names that the model has for them; none
    of a model that stands in for another. `release` has to follow."""
    everyone = tuple(range(group.size()))
    dealing = groups.get("placement", everyone, "gloo")
    exchange = RowExchange(dealing, group.rank(), plan.shares, monitor)
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
            module,
            key,
            parameter,
            parameter.shape,
            parameter.stride(),
            placed.ranks[0],
            exchange.rank in placed.ranks,
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
    alike = modules_alike(placed.module, modules)
    if len(alike) != 1:
        raise InvalidInput(
            f"the plan places module {placed.module!r}, which the model "
            + (f"may have as {alike[0]!r} or {alike[1]!r}." if alike else "does not have."),
            thing=f"placement of {placed.module}",
            value=placed.module,
            remedy="Place modules of this model.",
        )
    return alike[0], modules[alike[0]]


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
