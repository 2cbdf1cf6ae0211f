"""A context around every `step()` of an optimizer, with its hooks and its closure.

torch's own hooks see the beginning of a step, and its end where it has one; not that it failed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import Any

from torch.optim import Optimizer

Step = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class WrappedStep:
    """Until removed. step: in the optimizer's `__dict__`. before: what was there, of a scheduler
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
