"""Values and optimizer state of placed modules: held by their own ranks while training, whole on
every rank in a checkpoint and after `autosync.detach`.

On other ranks a parameter has no element and is frozen, so that a script that reads it outside of
its module fails on the shape, and no optimizer makes state for it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autosync.extensions.placement.row_exchange import RowExchange
from autosync.runtime.hooks.model_hooks import Removable
from autosync.runtime.transport.agreement import CollectiveCalls
from autosync.runtime.transport.tensor_exchange import exchange_states
from autosync.runtime.updates.optimizers import held_state


@dataclass(frozen=True, slots=True)
class PlacedParameter:
    """key: in its module's state_dict. source: the first rank that holds it."""

    module: nn.Module
    key: str
    parameter: nn.Parameter
    shape: torch.Size
    source: int
    is_held: bool


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
        """Every rank holds every variable again. A collective. with_state: the optimizer's state,
        too; else that of these variables is gone on every rank."""
        if not self._parameters:
            return
        self._calls.meet("detach()")
        state = self._gathered_state() if with_state else {}
        places = self._places()
        for placed in self._parameters:
            value = self._value(placed)
            if not with_state:
                held_state(self._optimizer).pop(placed.parameter, None)
            if not placed.is_held:
                placed.parameter.data = value
                placed.parameter.requires_grad_(True)
                if (of_it := state.get(places.get(id(placed.parameter), -1))) is not None:
                    held_state(self._optimizer)[placed.parameter] = of_it

    def renew(self) -> None:
        """Parameters that this rank does not hold have their shape again and are trained, but with
        zeros for values: a peer that holds them may be gone. Where all were given back, nothing
        changes."""
        for placed in self._elsewhere():
            if placed.parameter.shape != placed.shape:
                placed.parameter.data = placed.parameter.data.new_zeros(placed.shape)
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
        self._calls.meet("optimizer.state_dict()")
        whole = state_dict["state"] | {
            place: state
            for place, state in self._gathered_state().items()
            if place not in state_dict["state"]
        }
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
