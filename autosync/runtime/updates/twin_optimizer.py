"""Applies the user's own optimizer to some of its parameters.

A twin of the optimizer shares its class and settings, but holds other parameter groups: some of the
parameters (whole variables), or tensors that stand for parts of them (owned and sharded updates).
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.layout.records import Settings, VariableRecord


def snapshot(optimizer: Optimizer) -> Settings:
    """The hyperparameters of every group as they are now; a scheduler may change them next."""
    return [
        {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.__dict__["param_groups"]
    ]


def held_state(optimizer: Optimizer) -> MutableMapping[Any, Any]:
    """What the optimizer holds, past the view that a script may get for `optimizer.state`."""
    state: MutableMapping[Any, Any] = optimizer.__dict__["state"]
    return state


@contextmanager
def as_plain(optimizer: Optimizer, optimizer_class: type[Optimizer]) -> Iterator[None]:
    """Inside, an optimizer that follows a plan is of its own class: its methods read the state that
    it holds."""
    kind = optimizer.__class__
    optimizer.__class__ = optimizer_class
    try:
        yield
    finally:
        optimizer.__class__ = kind


def plain_step(optimizer_class: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """The step of a class without torch's wrapper, which runs the hooks: around the script's own
    `step()` they have run."""
    step = optimizer_class.step
    plain: Callable[[Optimizer], Any] = step.__wrapped__ if hasattr(step, "hooked") else step  # type: ignore[attr-defined]
    return plain


def step_twin(
    optimizer_class: type[Optimizer], optimizer: Optimizer, groups: Settings, state: Any
) -> None:
    """One step of an optimizer with the settings of `optimizer`, but other groups and state."""
    if groups:
        plain_step(optimizer_class)(_twin(optimizer_class, optimizer, groups, state))


def _twin(
    optimizer_class: type[Optimizer], optimizer: Optimizer, groups: Settings, state: Any
) -> Optimizer:
    made: Optimizer = object.__new__(optimizer_class)
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a scheduler's wrapper is bound to the original
    made.__dict__["param_groups"] = groups
    made.__dict__["state"] = state
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        made.__dict__[hooks] = OrderedDict()
    return made


def update_parameters(
    optimizer_class: type[Optimizer],
    optimizer: Optimizer,
    variables: Sequence[VariableRecord],
    settings: Settings,
) -> None:
    """Update whole variables from `parameter.grad`, on the script's own thread."""
    groups = grouped(((v.group, v.parameter) for v in variables), settings)
    step_twin(optimizer_class, optimizer, groups, held_state(optimizer))


def update_aliases(
    optimizer_class: type[Optimizer],
    optimizer: Optimizer,
    variables: Sequence[VariableRecord],
    settings: Settings,
) -> None:
    """Update whole variables from their targets, on a thread of the runtime: the script may
    meanwhile clear or replace `parameter.grad`."""
    state: defaultdict[Tensor, Any] = defaultdict(dict)
    held = held_state(optimizer)
    for variable in variables:
        if variable.group >= 0:
            variable.alias.grad = variable.target
            state[variable.alias] = held[variable.parameter]
    groups = grouped(((v.group, v.alias) for v in variables), settings)
    step_twin(optimizer_class, optimizer, groups, state)
    for variable in variables:
        variable.alias.grad = None


def grouped(members: Iterable[tuple[int, Tensor]], settings: Settings) -> Settings:
    """Parameter groups of (group index, tensor) pairs, without those that no group holds."""
    chosen: dict[int, list[Tensor]] = {}
    for group, tensor in members:
        if group >= 0:
            chosen.setdefault(group, []).append(tensor)
    return [{**settings[group], "params": tensors} for group, tensors in sorted(chosen.items())]
