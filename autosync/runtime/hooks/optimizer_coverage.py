"""Checks that plan, model and optimizers hold the same parameters, when a plan is attached and at
each step: a script may freeze, add and replace parameters.

A parameter that trains outside of the plan differs from rank to rank, or is never updated.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import is_not
from types import FrameType
from typing import Any
from weakref import ref

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.execution.model_checks import ModelStructure, unplanned
from autosync.runtime.hooks.model_hooks import Removable, Reporting

MOST_NAMED = 5
"""Parameters that a message lists."""

HOOKED_STEP = Optimizer.profile_hook_step(Optimizer.step).__code__
"""torch's wrapper of every `step()`, which runs its hooks."""

Named = dict[int, tuple[ref[nn.Parameter], str]]
"""Parameters by identity, which keeps none of them, and their names."""


def given_optimizers(optimizer: Any) -> list[Optimizer]:
    """One optimizer or several, as a list.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(optimizer, Optimizer):
        return [optimizer]
    given = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    other = next((one for one in given if not isinstance(one, Optimizer)), None)
    if other is not None or not given:
        found = "an empty list" if not given else f"a {type(other).__name__}"
        raise InvalidInput(
            f"optimizer is {found}, where a torch.optim.Optimizer is wanted, or several.",
            thing="optimizer",
            value=type(optimizer).__name__,
            remedy="Give the optimizer itself, not what wraps it; of several a list.",
        )
    return given


def check_held(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Raises InvalidInput where a tensor of the model has no shape yet, an optimizer trains what is
    not the model's, or two train the same."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise InvalidInput(
                f"{name!r} of the model belongs to a lazy module and has no shape yet.",
                thing=f"model.{name}",
                remedy="Run a forward pass of the model on every rank, which gives it one, before "
                "autosync.distribute.",
            )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    holder: dict[int, Optimizer] = {}
    outside = []
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if id(parameter) not in names:
                    if parameter.requires_grad:
                        shape = tuple(parameter.shape)
                        outside.append(f"parameter {place} of group {number}, shape {shape}")
                    continue
                if holder.setdefault(id(parameter), optimizer) is not optimizer:
                    raise _held_twice(names[id(parameter)], holder[id(parameter)], optimizer)
    if outside:
        raise InvalidInput(
            f"the optimizer trains {len(outside)} parameters that are not the model's, so no plan "
            f"synchronizes them: {_listed(outside)}.",
            thing="optimizer",
            value=len(outside),
            remedy="Distribute a module that holds them all, under one optimizer or several; or, "
            "if they are to differ from rank to rank, give them an optimizer of their own.",
        )


def warn_unheld(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Say which trainable parameters no optimizer updates: synchronized as under torch's DDP, and
    never trained."""
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    unheld = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if unheld:
        warnings.warn(
            f"no optimizer holds {len(unheld)} trainable parameters of the model, so nothing "
            f"updates them: {_listed(unheld)}. Give autosync.distribute every optimizer of the "
            "model as a list, or freeze them by requires_grad_(False) and tune again.",
            stacklevel=3,
        )


def renormalized_tables(model: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """Those that a forward pass changes, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    }


def warn_renormalized(model: nn.Module) -> None:
    """Say which tables a forward pass changes, each rank the rows of its own batch."""
    tables = list(renormalized_tables(model))
    if tables:
        warnings.warn(
            f"with max_norm, a forward pass of {_listed(tables)} renormalizes the rows that a "
            "rank's batch touches, on that rank alone: replicas differ from then on, as they do "
            "under torch's DDP. Leave max_norm out, and renormalize all rows on every rank behind "
            "step().",
            stacklevel=3,
        )


class CoverageGuard:
    """Compares what is trained with what was, at each `step()`: one pass over identities.

    optimizers: those that were given. planned: parameters that are synchronized. in_parts: those,
    by name, whose gradients a rank does not have whole behind `backward()`, or that an engine of
    torch's has replaced. within_steps: by name, those that another optimizer may update only inside
    of the `step()` of one that was given, because what happens there is part of the update: it
    clips, or sends it. exchanges: an engine of torch's exchanges the model's parameters by itself.
    reporting: around a refusal that other ranks are to read.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        planned: Iterable[nn.Parameter],
        in_parts: Mapping[str, nn.Parameter] | None = None,
        within_steps: Mapping[str, nn.Parameter] | None = None,
        *,
        exchanges: bool = False,
        reporting: Reporting | None = None,
    ):
        planned = list(planned)
        known = {id(parameter) for parameter in planned}
        self._structure = None if exchanges else ModelStructure(model, planned)
        self._reporting = reporting
        self._optimizers = optimizers
        self._frozen = [(n, p) for n, p in model.named_parameters() if id(p) not in known]
        known |= {id(parameter) for _, parameter in self._frozen}
        self._frozen += _frozen_outside(optimizers, known)
        self._held = {
            id(o): [list(group["params"]) for group in o.param_groups] for o in optimizers
        }
        apart = [*self._frozen, *(in_parts or {}).items()]
        self._apart = _by_identity(apart)
        self._within_steps = _by_identity((within_steps or {}).items())

    def check(self, optimizer: Optimizer, *_: Any) -> None:
        """At the `step()` of an optimizer that was given.

        Raises:
            NotSupported: a frozen parameter was unfrozen, the optimizer holds other ones, or
                parameters of the model were replaced or added.
        """
        self.check_model()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise unplanned(name, "was unfrozen")
        for number, (before, group) in enumerate(
            zip(self._held[id(optimizer)], optimizer.param_groups, strict=False)
        ):
            now = group["params"]
            if len(before) != len(now) or any(map(is_not, before, now)):
                raise unplanned(f"parameter group {number} of the optimizer", "was changed")
        if len(self._held[id(optimizer)]) != len(optimizer.param_groups):
            raise unplanned("the list of the optimizer's parameter groups", "was changed")

    def check_model(self) -> None:
        """Raises NotSupported where its parameters were replaced, or others added."""
        if self._structure is not None:
            self._structure.check()

    def watch_steps(self) -> list[Removable]:
        """Check at each `step()` of optimizers that keep their own."""
        return [optimizer.register_step_pre_hook(self.check) for optimizer in self._optimizers]

    def watch_others(self) -> Removable:
        """Refuse the `step()` of any other optimizer on parameters whose gradients a rank does not
        have whole, or that no plan synchronizes, as of those that came behind the plan; and on
        those that it may update within a given one's `step()` only, outside of it."""

        def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) in self._held:
                return
            with self._reporting("optimizer.step()") if self._reporting else nullcontext():
                check(optimizer)

        def check(optimizer: Optimizer) -> None:
            self.check_model()
            held = [p for group in optimizer.param_groups for p in group["params"]]
            trained = [parameter for parameter in held if parameter.requires_grad]
            for parameter in trained:
                if (name := _name_in(self._apart, parameter)) is not None:
                    raise _other_optimizer(optimizer, name)
            if not self._within_steps or _steps_one_of(self._optimizers):
                return
            for parameter in trained:
                name = _name_in(self._within_steps, parameter)
                if name is not None and parameter.grad is not None:
                    raise _outside_of_step(optimizer, name)

        handle: Removable = register_optimizer_step_pre_hook(hook)
        return handle


def _by_identity(named: Iterable[tuple[str, nn.Parameter]]) -> Named:
    return {id(parameter): (ref(parameter), name) for name, parameter in named}


def _name_in(named: Named, parameter: nn.Parameter) -> str | None:
    """None where it is not among them, but for its address."""
    found = named.get(id(parameter))
    return found[1] if found is not None and found[0]() is parameter else None


def _steps_one_of(optimizers: Sequence[Optimizer]) -> bool:
    """Whether the `step()` of one of them is running, as where Lookahead steps another optimizer
    inside of it. Called by a hook of a `step()`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is HOOKED_STEP:
            stepping = frame.f_locals.get("self")
            if any(optimizer is stepping for optimizer in optimizers):
                return True
        frame = frame.f_back
    return False


def _frozen_outside(
    optimizers: Iterable[Optimizer], known: set[int]
) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"parameter {place} of group {number} of the optimizer, outside the model", parameter)
        for optimizer in optimizers
        for number, group in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(group["params"])
        if id(parameter) not in known
    ]


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return ", ".join(words[:MOST_NAMED]) + more


def _held_twice(name: str, first: Optimizer, second: Optimizer) -> InvalidInput:
    kinds = f"{type(first).__name__} and {type(second).__name__}"
    return InvalidInput(
        f"two optimizers ({kinds}) hold parameter {name!r}.",
        thing=f"parameter {name}",
        value=kinds,
        remedy="Give each parameter to one of them.",
    )


def _other_optimizer(optimizer: Optimizer, name: str) -> NotSupported:
    kind = type(optimizer).__name__
    return NotSupported(
        f"optimizer {kind}, which autosync.distribute was not given, steps on {name!r}: under this "
        "plan no gradient of it is whole there.",
        thing=f"parameter {name}",
        value=kind,
        remedy="Give every optimizer of the model to it: "
        "`model, (a, b) = autosync.distribute(model, [a, b], bundle)`.",
    )


def _outside_of_step(optimizer: Optimizer, name: str) -> NotSupported:
    kind = type(optimizer).__name__
    return NotSupported(
        f"optimizer {kind}, which autosync.distribute was not given, steps on {name!r} outside of "
        "the step() of the one that was: max_grad_norm clips in that step(), and a plan that lags "
        "sends its update.",
        thing=f"parameter {name}",
        value=kind,
        remedy="Give autosync.distribute the optimizer whose step() runs: of SAM, whose "
        "second_step() steps an inner optimizer, that is the inner one. Or leave max_grad_norm out "
        "and clip by autosync.clip_grad_norm_ before the step.",
    )
