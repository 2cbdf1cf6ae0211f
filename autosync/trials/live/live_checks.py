"""What is refused before the first trial: what `distribute` would refuse after the last one, and
what trials cannot put back."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from autosync.errors import InvalidInput, NotSupported
from autosync.runtime.distributed import check_distributable
from autosync.runtime.hooks.optimizer_coverage import warn_unheld
from autosync.runtime.hooks.torch_compile import is_compiled
from autosync.runtime.torch_engines import check_options
from autosync.runtime.updates.clipping import check_max_norm, clipping_of_several
from autosync.runtime.updates.optimizers import check_one_backward


def check_tunable(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    others: Sequence[object],
    max_grad_norm: float | None,
    ddp_options: Mapping[str, Any],
) -> None:
    """Warns of parameters that no optimizer holds.

    Raises:
        InvalidInput: the model or an optimizer is distributed already; an optimizer trains what is
            not the model's; an option is none of DistributedDataParallel's; one of `others` has no
            state to put back.
        NotSupported: the model, or a module of it, is compiled; an option of DDP's contradicts
            every plan; the gradients of several optimizers are to be clipped; a step() needs a
            closure.
    """
    check_distributable(model, optimizers)
    check_one_backward(optimizers)
    check_max_norm(max_grad_norm)
    _refuse_compiled(model)
    check_options(ddp_options, "autosync")
    if max_grad_norm and len(optimizers) > 1:
        raise clipping_of_several()
    for place, other in enumerate(others):
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            kind = type(other).__name__
            raise InvalidInput(
                f"others[{place}] ({kind}) has no state_dict and load_state_dict, so trials could "
                "not put it back.",
                thing=f"others[{place}]",
                value=kind,
                remedy="Give what has both: schedulers, gradient scalers.",
            )
    warn_unheld(model, optimizers)


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if is_compiled(module):
            which = f"module {name!r} of the model" if name else "the model"
            raise NotSupported(
                f"{which} is compiled: the hooks that record its iterations would tear the "
                "compiled region apart, also after the tuning.",
                thing="model",
                value=name or type(model).__name__,
                remedy="Tune the plain model with save=..., and give autosync.distribute the "
                "compiled one with that bundle.",
            )
