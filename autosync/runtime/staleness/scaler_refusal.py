"""Refuses a GradScaler where updates are late: it scales by what the newest gradients need, and
skips steps that other ranks take."""

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from autosync.errors import NotSupported
from autosync.runtime.hooks.gradient_hooks import Removable

AMP = "_step_supports_amp_scaling"
"""torch's mark of an optimizer that a GradScaler tells its scale."""


@dataclass(frozen=True, slots=True)
class _Mark:
    optimizer: Optimizer

    def remove(self) -> None:
        self.optimizer.__dict__.pop(AMP, None)


def refuse_scalers(optimizer: Optimizer) -> list[Removable]:
    """From now on the optimizer's step raises NotSupported under a scaler, until removed."""
    optimizer.__dict__[AMP] = True
    return [_Mark(optimizer), optimizer.register_step_pre_hook(_check_step)]


def _check_step(optimizer: Optimizer, *_: Any) -> None:
    if "grad_scale" in optimizer.__dict__:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise NotSupported(
            "a GradScaler steps an optimizer whose plan lags: gradients of an earlier "
            "iteration have an earlier scale.",
            thing="GradScaler",
            remedy="Train in bfloat16 or float32, or use a strategy of staleness 0.",
        )
