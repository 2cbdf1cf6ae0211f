"""The script's optimizer while it follows a plan.

The object stays the script's own and only its class changes, to a subclass made here: schedulers
that already hold it, scalers and isinstance go on working, and detaching gives the class back.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from copyreg import _reconstructor as made_again  # type: ignore[attr-defined]
from dataclasses import dataclass
from functools import cache, wraps
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.execution.engine import Engine
from autosync.runtime.hooks.model_hooks import refused_join
from autosync.runtime.hooks.optimizer_coverage import CoverageGuard
from autosync.runtime.updates.optimizers import OWN_CLASS, as_plain, own_class

ENGINE = "_autosync_engine"
GUARD = "_autosync_guard"
WRAPPED_STEP = "_autosync_wrapped_step"

Step = Callable[..., Any]


class Synchronized(Optimizer):
    """Comes before the user's class in the method resolution order."""

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever ends it, hooks included, other ranks read."""
        engine: Engine = self.__dict__[ENGINE]
        with engine.monitor.reporting("optimizer.step()"):
            loss = self._hooked_step(*args, **kwargs)
        engine.monitor.refusals.withdraw()
        return loss

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
        if closure is not None or not engine.script_state.make(self):
            engine.optimizer_step.step(self)
        return loss

    @property
    def state(self) -> Any:
        """As it is behind the last `step()`; see `script_state`."""
        engine: Engine = self.__dict__[ENGINE]
        return engine.script_state.of(self)

    @state.setter
    def state(self, state: Any) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.script_state.replace(self, state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.optimizer_step.clear(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Whole on every rank. Where the plan owns or shards updates, this
        is a collective: call it on every rank."""
        engine: Engine = self.__dict__[ENGINE]
        return engine.script_state.state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        engine: Engine = self.__dict__[ENGINE]
        engine.script_state.load_state_dict(self, state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled or copied as the class that it had, with the state of every parameter; a
        collective where `state_dict()` is one."""
        engine: Engine = self.__dict__[ENGINE]
        kind = own_class(self)
        with engine.script_state.gathered(), as_plain(self):
            attributes = dict(self.__getstate__())
            attributes["state"] = type(self.state)(dict, dict(self.state))
        return made_again, (kind, object, None), attributes

    def join_hook(self, **kwargs: Any) -> Any:
        engine: Engine = self.__dict__[ENGINE]
        return refused_join("torch's Join", engine.monitor.reporting)(**kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise NotSupported(
            "a parameter group was added after the strategy was applied: its plan does not "
            "synchronize the new parameters.",
            thing="optimizer.add_param_group",
            remedy="Add every parameter group before `autosync.distribute`.",
        )


def follows_plan(optimizer: Optimizer) -> bool:
    return ENGINE in optimizer.__dict__


@cache
def synchronized_class(kind: type[Optimizer]) -> type[Optimizer]:
    return type(f"Synchronized{kind.__name__}", (Synchronized, kind), {OWN_CLASS: kind})


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


def release(optimizer: Optimizer) -> None:
    """Give the optimizer its own class back."""
    optimizer.__class__ = own_class(optimizer)
    optimizer.__dict__.pop(ENGINE)
    optimizer.__dict__.pop(GUARD)
    late = optimizer.__dict__.pop("step", None)
    bound = optimizer.__dict__.pop(WRAPPED_STEP, None)
    if bound is None and late is not None:
        bound = scheduled_step(optimizer, type(optimizer))
    if bound is not None:
        optimizer.__dict__["step"] = bound


@dataclass(frozen=True, slots=True)
class WrappedStep:
    """A context around every `step()` of an optimizer, with its hooks and its closure, until
    removed. torch's own hooks see the beginning of a step, and its end where it has one; not that
    it failed.

    step: in the optimizer's `__dict__`. before: what was there, of a scheduler
    that was made before."""

    optimizer: Optimizer
    step: Step
    before: Step | None

    def remove(self) -> None:
        """A scheduler that was made since has wrapped this step: it gets the class's own."""
        held = self.optimizer.__dict__.pop("step", None)
        if self.before is not None:
            self.optimizer.__dict__["step"] = self.before
        elif held is not None and held is not self.step:
            self.optimizer.__dict__["step"] = scheduled_step(self.optimizer, type(self.optimizer))


def wrap_steps(
    optimizer: Optimizer, context: Callable[[], AbstractContextManager[None]]
) -> WrappedStep:
    """context: entered anew by each step."""
    before: Step | None = optimizer.__dict__.get("step")
    kind = type(optimizer)

    @wraps(before or kind.step)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with context():
            if before is not None:
                return before(*args, **kwargs)
            return kind.step(self, *args, **kwargs)

    bound = MethodType(step, optimizer)  # of which a scheduler takes the function
    optimizer.__dict__["step"] = bound
    return WrappedStep(optimizer, bound, before)


def scheduled_step(optimizer: Optimizer, kind: type[Optimizer]) -> Step:
    """The step that a scheduler would have made of an optimizer of this class."""

    @wraps(kind.step)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer.__dict__["_opt_called"] = True
        return kind.step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
