"""What runs when a gradient is complete: nothing but a call of the engine, once a variable."""

from typing import Any, Protocol

import torch

from autosync.runtime.compression.factors import FactorCapture
from autosync.runtime.execution.engine import Engine
from autosync.runtime.layout.accumulators import Accumulator, NodeHook
from autosync.runtime.layout.records import VariableRecord


class Removable(Protocol):
    def remove(self) -> None: ...


def watch(engine: Engine, variable: VariableRecord) -> Removable:
    """Tell the engine of the variable's gradients, until removed."""
    if isinstance(variable.packer, FactorCapture):
        hook = _factor_hook(engine, variable, variable.packer)
        variable.accumulator = variable.packer.install(hook)
        return variable.packer
    variable.accumulator = Accumulator(variable.parameter, _dense_hook(engine, variable))
    return variable.accumulator


def _dense_hook(engine: Engine, variable: VariableRecord) -> NodeHook:
    backward = engine.backward

    def hook(_: Any, gradients: Any) -> None:
        if backward.synchronizing and gradients[0] is not None:
            backward.arrived(variable)

    return hook


def _factor_hook(engine: Engine, variable: VariableRecord, capture: FactorCapture) -> NodeHook:
    """Whether or not a gradient came beside the factors."""
    backward = engine.backward

    def hook(_: Any, gradients: Any) -> None:
        if backward.synchronizing:
            capture.collect()
            backward.arrived(variable)
        else:
            with torch.no_grad():
                capture.accumulate()

    return hook
