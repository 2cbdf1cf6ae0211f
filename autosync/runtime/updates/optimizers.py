"""Applies the script's own optimizer, or several of one model, to some of its parameters.

A shadow of the optimizer shares its class and settings, but holds other parameter groups: some of
the parameters (whole variables), or tensors that stand for parts of them (owned and sharded
updates). Which of them may be updated by themselves depends on how much of a model the optimizer
reads to update one element of it.
"""

import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.layout.records import Settings, VariableRecord

OWN_CLASS = "_autosync_own_class"
"""Attribute of the class that an optimizer has while it follows a plan: the class that it had."""

NUMBER = "_autosync_optimizer"
"""Entry of a group's settings: which of several optimizers it belongs to."""

ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
"""Their update of an element reads only that element's gradient and state."""

BY_VARIABLE: tuple[type[Optimizer], ...] = (
    *ELEMENTWISE,
    torch.optim.ASGD,
    torch.optim.Rprop,
    torch.optim.SparseAdam,
    torch.optim.Adafactor,
    torch.optim.Muon,
)
"""Their update of a variable reads only that variable's gradient and state. Others may not: LAMB as
timm has it divides by the norm over all gradients, Lookahead steps another optimizer."""


VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def own_class(optimizer: Optimizer) -> type[Optimizer]:
    """The class that an optimizer has while it follows no plan."""
    kind = type(optimizer)
    own: type[Optimizer] = getattr(kind, OWN_CLASS, kind)
    return own


@contextmanager
def as_plain(optimizer: Optimizer) -> Iterator[None]:
    """Inside, an optimizer that follows a plan is of its own class: its methods read the state that
    it holds."""
    kind = optimizer.__class__
    optimizer.__class__ = own_class(optimizer)
    try:
        yield
    finally:
        optimizer.__class__ = kind


def held_state(optimizer: Optimizer) -> MutableMapping[Any, Any]:
    """What the optimizer holds, past what a script gets for `optimizer.state`."""
    state: MutableMapping[Any, Any] = optimizer.__dict__["state"]
    return state


def make_first_state(optimizer: Optimizer) -> None:
    """Of parameters that have none, where the optimizer makes its state when it is made itself:
    Adagrad. Others make it in their first step."""
    if own_class(optimizer) is not torch.optim.Adagrad:
        return
    held = held_state(optimizer)
    for group in optimizer.__dict__["param_groups"]:
        if bare := [parameter for parameter in group["params"] if not held.get(parameter)]:
            accumulated = group["initial_accumulator_value"]
            made = torch.optim.Adagrad(
                bare, initial_accumulator_value=accumulated, fused=group.get("fused")
            )
            held.update(made.state)


def has_begun(optimizer: Optimizer) -> bool:
    """Whether it has stepped. Adagrad has a state before, and what only reads the state of a
    parameter leaves an empty one."""
    return any(
        not isinstance(state, Mapping) or bool(state.get("step", state))
        for state in optimizer.state.values()
    )


def _snapshot(optimizer: Optimizer) -> Settings:
    """The hyperparameters of every group as they are now; a scheduler may change them next."""
    return [
        {
            key: value.clone() if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.__dict__["param_groups"]
    ]


class JoinedOptimizers(Optimizer):
    """Several optimizers of one model, seen as one: their parameter groups side by side, the state
    of each parameter with the optimizer that holds it, and a step in which each updates its own
    groups. What an engine takes for the optimizer of its model; the script never sees it."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        # Not torch's own constructor: groups and state stay with the optimizers.
        self.optimizers = tuple(optimizers)
        self._noted: dict[int, Settings] = {}
        self.__dict__["state"] = _JoinedState(optimizers)
        self.refresh()

    def refresh(self) -> None:
        """An optimizer that loads a state makes new groups."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.__dict__["param_groups"] = groups

    def owners(self) -> list[int]:
        """The number of each group's optimizer."""
        return [i for i, o in enumerate(self.optimizers) for _ in o.param_groups]

    def note(self, optimizer: Optimizer) -> None:
        """Its `step()` has come; a scheduler may change its settings before the others' does."""
        self._noted[self.optimizers.index(optimizer)] = _snapshot(optimizer)

    def settings(self) -> Settings:
        """Of every group, as of its optimizer's `step()`."""
        found = []
        for number, optimizer in enumerate(self.optimizers):
            groups = self._noted.pop(number, None) or _snapshot(optimizer)
            found += [{**group, NUMBER: number} for group in groups]
        return found

    def step(self, closure: Any = None) -> Any:
        """Of a shadow: its groups come from `settings`."""
        mine: defaultdict[int, Settings] = defaultdict(list)
        for group in self.param_groups:
            mine[group.pop(NUMBER)].append(group)
        for number, groups in mine.items():
            step_shadow(self.optimizers[number], groups, self.state)

    @property
    def grad_scale(self) -> Tensor | None:
        """A GradScaler leaves it on a fused optimizer while that steps."""
        return self._of_scaler("grad_scale")

    @property
    def found_inf(self) -> Tensor | None:
        return self._of_scaler("found_inf")

    def _of_scaler(self, name: str) -> Tensor | None:
        found = (getattr(optimizer, name, None) for optimizer in self.optimizers)
        return next((tensor for tensor in found if tensor is not None), None)


class _JoinedState(MutableMapping[Tensor, Any]):
    """The state of every parameter, where its optimizer keeps it."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        self._optimizers = optimizers
        self._holders = {
            id(parameter): optimizer
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }

    def _of(self, parameter: Tensor) -> MutableMapping[Tensor, Any]:
        return held_state(self._holders[id(parameter)])

    def __getitem__(self, parameter: Tensor) -> Any:
        return self._of(parameter)[parameter]

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        """Without the entry that torch's own mapping makes when it is read."""
        return self._of(parameter).get(parameter, default)

    def __setitem__(self, parameter: Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: Tensor) -> None:
        del self._of(parameter)[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        for optimizer in self._optimizers:
            yield from held_state(optimizer)

    def __len__(self) -> int:
        return sum(len(held_state(optimizer)) for optimizer in self._optimizers)


def optimizers_in(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The script's."""
    return optimizer.optimizers if isinstance(optimizer, JoinedOptimizers) else (optimizer,)


def class_of_group(optimizer: Optimizer, group: int) -> type[Optimizer]:
    """The class that updates a parameter group."""
    if isinstance(optimizer, JoinedOptimizers):
        optimizer = optimizer.optimizers[optimizer.owners()[group]]
    return own_class(optimizer)


def settings_of(optimizer: Optimizer) -> Settings:
    """The hyperparameters of every group as of `step()`."""
    return optimizer.settings() if isinstance(optimizer, JoinedOptimizers) else _snapshot(optimizer)


def plain_step(optimizer_class: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """The step of a class without torch's wrapper, which runs the hooks: around the script's own
    `step()` they have run."""
    step = optimizer_class.step
    plain: Callable[[Optimizer], Any] = step.__wrapped__ if hasattr(step, "hooked") else step  # type: ignore[attr-defined]
    return plain


def step_shadow(optimizer: Optimizer, groups: Settings, state: Any) -> None:
    """One step of an optimizer with the settings of `optimizer`, but other groups and state. What
    its class counts in attributes of its own goes on."""
    if not groups:
        return
    kind = own_class(optimizer)
    shadow: Optimizer = object.__new__(kind)
    shadow.__dict__.update(optimizer.__dict__)
    shadow.__dict__.pop("step", None)  # a scheduler's wrapper is bound to the original
    shadow.__dict__["param_groups"] = groups
    shadow.__dict__["state"] = state
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        shadow.__dict__[hooks] = OrderedDict()
    before = dict(shadow.__dict__)
    plain_step(kind)(shadow)
    optimizer.__dict__.update(_changed(before, shadow.__dict__))


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What a step has put there."""
    return {key: value for key, value in after.items() if value is not before.get(key)}


def update_parameters(
    optimizer: Optimizer, variables: Sequence[VariableRecord], settings: Settings
) -> None:
    """Update whole variables from `parameter.grad`, on the script's own thread. What the optimizer
    writes into its groups (timm's LAMB counts steps there) is in them from then on."""
    groups = grouped(((v.group, v.parameter) for v in variables), settings)
    before = [dict(group) for group in groups]
    step_shadow(optimizer, groups, held_state(optimizer))
    held = [group for one in optimizers_in(optimizer) for group in one.param_groups]
    numbers = sorted({v.group for v in variables if v.group >= 0})
    for number, old, new in zip(numbers, before, groups, strict=True):
        held[number].update(_changed(old, new))


def update_aliases(
    optimizer: Optimizer, variables: Sequence[VariableRecord], settings: Settings
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
    step_shadow(optimizer, groups, state)
    for variable in variables:
        variable.alias.grad = None


def grouped(members: Iterable[tuple[int, Tensor]], settings: Settings) -> Settings:
    """Parameter groups of (group index, tensor) pairs, without those that no group holds."""
    chosen: dict[int, list[Tensor]] = {}
    for group, tensor in members:
        if group >= 0:
            chosen.setdefault(group, []).append(tensor)
    return [{**settings[group], "params": tensors} for group, tensors in sorted(chosen.items())]


def looks_at_one_variable(optimizer_class: type[Optimizer]) -> bool:
    return optimizer_class in BY_VARIABLE


def check_elementwise(optimizer_class: type[Optimizer], variable: str) -> None:
    """Raises NotSupported naming the optimizer when a part of a variable cannot be updated."""
    if optimizer_class not in ELEMENTWISE:
        known = ", ".join(known.__name__ for known in ELEMENTWISE)
        raise NotSupported(
            f"the strategy updates a part of variable {variable!r} on its own, which optimizer "
            f"{optimizer_class.__name__} does not allow.",
            thing="optimizer",
            value=optimizer_class.__name__,
            remedy=f"Use one of {known}, or a strategy without owned or sharded updates.",
        )


def check_one_backward(optimizers: Iterable[Optimizer]) -> None:
    """Raises NotSupported where a `step()` runs forward and backward passes by itself: it cannot be
    called without a closure."""
    for optimizer in optimizers:
        given = list(signature(type(optimizer).step).parameters.values())[1:]
        if any(one.default is Parameter.empty and one.kind not in VARIADIC for one in given):
            kind = type(optimizer).__name__
            raise NotSupported(
                f"{kind}.step() needs a closure, since it may run several forward and backward "
                "passes: a plan synchronizes one for each step().",
                thing="optimizer",
                value=kind,
                remedy="Use an optimizer whose step() takes gradients as they are.",
            )


def warn_if_together(optimizers: Sequence[Optimizer]) -> None:
    """Under a plan that continues during the next forward pass: say whose updates do not."""
    kinds = [type(one).__name__ for one in optimizers if type(one) not in BY_VARIABLE]
    if kinds:
        warnings.warn(
            f"optimizer {', '.join(kinds)} may look at several variables at once, so backward() "
            "waits for all their sums and step() updates them together: what the plan lets run "
            "during the next forward pass does not.",
            stacklevel=3,
        )
