"""Refuses a GradScaler where updates are late: it scales by what the newest gradients need, and
skips steps that other ranks take."""

from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from autosync.errors import NotSupported

AMP = "_step_supports_amp_scaling"
"""torch's mark of an optimizer that a GradScaler tells its scale."""


@dataclass(frozen=True, slots=True)
class ScalerMark:
    """On an optimizer, until removed: a GradScaler tells it its scale, so that `check_unscaled`
    sees that there is one."""

    optimizer: Optimizer

    def remove(self) -> None:
        self.optimizer.__dict__.pop(AMP, None)


def mark_for_scalers(optimizer: Optimizer) -> ScalerMark:
    optimizer.__dict__[AMP] = True
    return ScalerMark(optimizer)


def check_unscaled(optimizer: Optimizer, *_: Any) -> None:
    """Before a step of a marked optimizer. Raises NotSupported under a scaler."""
    if "grad_scale" in optimizer.__dict__:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise NotSupported(
            "a GradScaler steps an optimizer whose plan lags: gradients of an earlier "
            "iteration have an earlier scale.",
            thing="GradScaler",
            remedy="Train in bfloat16 or float32, or use a strategy of staleness 0.",
        )
