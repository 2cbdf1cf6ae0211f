"""The user's optimizer, taught to wait for the plan.

The object stays the user's own and only its class changes, to a subclass made here: schedulers
that already hold it, scalers and isinstance go on working, and detaching gives the class back.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.compression.powersgd import parameters_of, saved_keys, take_errors
from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.script_state import StateView
from autosync.runtime.hooks.model_methods import refused_join
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.hooks.plain_copies import reduce_optimizer
from autosync.runtime.hooks.step_wrapper import scheduled_step
from autosync.runtime.updates.twin_optimizer import as_plain, held_state

ENGINE = "_autosync_engine"
GUARD = "_autosync_guard"
WRAPPED_STEP = "_autosync_wrapped_step"


class Synchronized(Optimizer):
    """Comes before the user's class in the method resolution order."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever ends it, hooks included, other ranks read."""
        engine: Engine = self.__dict__[ENGINE]
        with engine.monitor.telling("optimizer.step()"):
            return self._hooked_step(*args, **kwargs)

    step.hooked = True  # type: ignore[attr-defined]  # or torch wraps it once more as it loads state

    @Optimizer.profile_hook_step
    def _hooked_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """torch's wrapper runs the hooks, as of any optimizer; updates within know nothing of
        them."""
        loss = None
        engine: Engine = self.__dict__[ENGINE]
        guard: CoverageGuard = self.__dict__[GUARD]
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        guard.check(self)
        if closure is None and engine.begin_state(self):
            return None
        engine.step(self)
        if engine.turns is not None and engine.turns.all_taken():
            for optimizer, set_to_none in engine.turns.take_postponed():
                _clear(optimizer, set_to_none)
        return loss

    @property
    def state(self) -> Any:
        """As it is behind the last `step()`; see `script_state`."""
        engine: Engine = self.__dict__[ENGINE]
        if engine.state_form.in_parts:  # nothing is gathered
            return held_state(self)
        return engine.script_state.of(self)

    @state.setter
    def state(self, state: Any) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.script_state.show()
        self.__dict__["state"] = state.plain() if isinstance(state, StateView) else state

    def zero_grad(self, set_to_none: bool = True) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.cleared(self)
        if engine.turns is not None and engine.turns.postpone(self, set_to_none):
            return
        engine.drop_gradients()
        _clear(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Whole on every rank. Where the plan owns or shards updates, or packs by PowerSGD, this
        is a collective: call it on every rank."""
        engine: Engine = self.__dict__[ENGINE]
        kind = engine.optimizer_class_of(self)
        added: dict[Tensor, dict[str, Any]] = {}
        state: dict[str, Any]
        if engine.state_form.in_parts:
            engine.flush()
            engine.script_state.take()
            with as_plain(self, kind):
                state = kind.state_dict(self)
            added = engine.state.parts(self)
        else:
            with engine.gathered_state(), as_plain(self, kind):
                state = kind.state_dict(self)
        errors = engine.saved_errors(self)
        entries: dict[int, Any] = state["state"]
        for number, parameter in enumerate(parameters_of(self)):
            entry = {**added.get(parameter, {}), **errors.get(parameter, {})}
            if entry or parameter in added or errors:  # torch misses those that others have
                entries[number] = {**entries.get(number, {}), **entry}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.flush()
        kind = engine.optimizer_class_of(self)
        state_dict, errors = take_errors(self, state_dict)
        if engine.state_form.in_parts:
            engine.script_state.take()
            keys = dict(zip(parameters_of(self), saved_keys(state_dict), strict=True))
            state = dict(state_dict["state"])
            parts = {p: state.pop(keys[p], {}) for p in engine.state.parts(self)}
            with as_plain(self, kind):
                kind.load_state_dict(self, {**state_dict, "state": state})
            engine.take_loaded(self, parts, errors)
            return
        if engine.turns is not None:  # the other optimizers' state lies in the same buckets
            engine.script_state.show("optimizer.load_state_dict()")
        with as_plain(self, kind):
            kind.load_state_dict(self, state_dict)
        engine.take_loaded(self, None, errors)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled or copied as the plain optimizer; a collective where `state_dict()` is one."""
        return reduce_optimizer(self, self.__dict__[ENGINE])

    def join_hook(self, **kwargs: Any) -> Any:
        engine: Engine = self.__dict__[ENGINE]
        return refused_join("torch's Join", engine.monitor.telling)(**kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise NotSupported(
            "a parameter group was added after the strategy was applied: its plan does not "
            "synchronize the new parameters.",
            thing="optimizer.add_param_group",
            remedy="Add every parameter group before `autosync.distribute`.",
        )


def _clear(optimizer: Optimizer, set_to_none: bool) -> None:
    with torch._C.DisableTorchFunctionSubclass():  # no value of a parameter is read
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.requires_grad_(False).zero_()


def follows_plan(optimizer: Optimizer) -> bool:
    return ENGINE in optimizer.__dict__


@cache
def synchronized_class(kind: type[Optimizer]) -> type[Optimizer]:
    return type(f"Synchronized{kind.__name__}", (Synchronized, kind), {})


def adopt(optimizer: Optimizer, engine: Engine, guard: CoverageGuard) -> None:
    """Make `optimizer` follow the engine until `release`."""
    bound = optimizer.__dict__.pop("step", None)
    optimizer.__dict__[ENGINE] = engine
    optimizer.__dict__[GUARD] = guard
    optimizer.__class__ = synchronized_class(type(optimizer))  # type: ignore[arg-type]
    if bound is None:
        return
    # A scheduler made before has bound the step of the old class to the object.
    optimizer.__dict__[WRAPPED_STEP] = bound

    @wraps(bound)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer.__dict__["_opt_called"] = True
        return Synchronized.step(optimizer, *args, **kwargs)  # type: ignore[arg-type]

    optimizer.__dict__["step"] = step


def release(optimizer: Optimizer, optimizer_class: type[Optimizer]) -> None:
    """Give the optimizer its own class back."""
    optimizer.__class__ = optimizer_class
    optimizer.__dict__.pop(ENGINE)
    optimizer.__dict__.pop(GUARD)
    late = optimizer.__dict__.pop("step", None)
    bound = optimizer.__dict__.pop(WRAPPED_STEP, None)
    if bound is None and late is not None:
        bound = scheduled_step(optimizer, optimizer_class)
    if bound is not None:
        optimizer.__dict__["step"] = bound
