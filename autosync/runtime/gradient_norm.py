"""`autosync.clip_grad_norm_`: torch's clipping by the global norm, under any plan."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.runtime.attached_models import ATTACHED
from autosync.runtime.attachment import Attachment
from autosync.runtime.execution.completion import Phase

DOUBLES = (torch.float64, torch.complex128)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_`, between backward and `step()`: scales all gradients so
    that their common norm is at most max_norm, and returns the norm before.

    Where a plan updates parts of variables on the ranks that own them, or places modules, no rank
    holds all sums: each clips its own by the norm over all ranks, and this is a collective.
    Elsewhere it is torch's function.

    Raises:
        NotSupported: such a plan, and another norm than 2 or other parameters than the model's.
            Those that no rank has a gradient for, such as frozen ones, may be left out.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    plan = _plan_with_parts(given)
    if plan is None:
        return nn.utils.clip_grad_norm_(given, max_norm, norm_type)
    _check(plan, given, norm_type)
    norm = plan.engine.gradients.clip_now(float(max_norm))
    return norm if any(parameter.dtype in DOUBLES for parameter in given) else norm.float()


def _plan_with_parts(given: Sequence[Tensor]) -> Attachment | None:
    """The plan that has reduced some of these gradients, and of which no rank holds all sums."""
    mine = {id(parameter) for parameter in given}
    for plan in ATTACHED.plans.values():
        if isinstance(plan, Attachment) and plan.engine.iteration.phase is Phase.REDUCING:
            divided = plan.engine.records.model_is_divided
            parts = (v for v in plan.engine.variables if divided or not v.whole)
            if any(id(variable.parameter) in mine for variable in parts):
                return plan
    return None


def _check(plan: Attachment, given: Sequence[Tensor], norm_type: float) -> None:
    if norm_type != 2.0:
        raise _refusal(f"the norm is of type {norm_type}, not 2", norm_type)
    engine = plan.engine
    planned = {id(variable.parameter) for variable in engine.variables}
    mine = {id(parameter) for parameter in given}
    others = [p for p in given if id(p) not in planned and p.grad is not None]
    left = [variable for variable in engine.variables if id(variable.parameter) not in mine]
    count = len(left) - len(engine.gradients.had_by_none(left)) if left else 0
    if others or count:
        what = f"{count} of them were left out and {len(others)} others were given"
        raise _refusal(f"not all the model's parameters are clipped together: {what}", what)


def _refusal(why: str, value: object) -> NotSupported:
    return NotSupported(
        f"gradients cannot be clipped under this plan, whose gradients no rank has all of: {why}.",
        thing="clip_grad_norm_",
        value=value,
        remedy="Clip all of model.parameters() by the norm of type 2, or use a strategy without "
        "owned or sharded updates and without placed modules.",
    )
