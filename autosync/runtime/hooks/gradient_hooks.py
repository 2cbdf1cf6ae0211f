"""What runs when a gradient is complete: one scaled copy into its bucket's buffer, and a count."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.iteration import Phase
from autosync.runtime.layout.records import Carrier, VariableRecord
from autosync.runtime.payloads.factors import FactorCapture

BACKWARD = Phase.BACKWARD

Hook = Callable[[Tensor], None]


class Removable(Protocol):
    def remove(self) -> None: ...


def watch(engine: Engine, variable: VariableRecord, share: float) -> Removable:
    """Call the variable's hook when its gradient is complete, until removed."""
    carrier = variable.carrier
    if isinstance(carrier, FactorCapture):
        carrier.install(_factor_hook(engine, carrier))
        return carrier
    variable.pack = gradient_hook(engine, variable, share)
    handle: Removable = variable.parameter.register_post_accumulate_grad_hook(variable.pack)
    return handle


def gradient_hook(engine: Engine, variable: VariableRecord, share: float) -> Hook:
    """For `register_post_accumulate_grad_hook`. share: this rank's part of the average."""
    if variable.carrier is not None:
        return _carrier_hook(engine, variable, variable.carrier)
    if variable.view is not None:
        return _view_hook(engine, variable, variable.view, share)
    return _pieces_hook(engine, variable, share)


def _factor_hook(engine: Engine, capture: FactorCapture) -> Callable[[Any, Any], None]:
    def hook(into: Any, out_of: Any) -> None:
        with torch.no_grad():
            if not engine.synchronizing:
                capture.accumulate()
                return
            if engine.phase is not BACKWARD:
                engine.begin_backward()
            capture.pack()
        engine.packed(capture.variable)

    return hook


def _carrier_hook(engine: Engine, variable: VariableRecord, carrier: Carrier) -> Hook:
    def hook(parameter: Tensor) -> None:
        if not engine.synchronizing:
            return
        if engine.phase is not BACKWARD:
            engine.begin_backward()
        with engine.monitor.refusing():
            carrier.pack()
        engine.packed(variable)

    return hook


def _view_hook(engine: Engine, variable: VariableRecord, view: Tensor, share: float) -> Hook:
    """The gradient becomes a view of the buffer, so nothing is copied back."""
    place = view.data_ptr()
    variable.target = view

    def hook(parameter: Tensor) -> None:
        if not engine.synchronizing:
            return
        if engine.phase is not BACKWARD:
            engine.begin_backward()
        gradient = parameter.grad
        assert gradient is not None
        if gradient.data_ptr() == place:
            view.mul_(share)
        else:
            torch.mul(gradient, share, out=view)
            parameter.grad = view
        engine.packed(variable)

    return hook


def _pieces_hook(engine: Engine, variable: VariableRecord, share: float) -> Hook:
    pieces = [
        (segment.region, view)
        for bucket in variable.buckets
        for member, segment, view in bucket.pieces
        if member is variable
    ]

    def hook(parameter: Tensor) -> None:
        if not engine.synchronizing:
            return
        if engine.phase is not BACKWARD:
            engine.begin_backward()
        gradient = parameter.grad
        assert gradient is not None
        for region, view in pieces:
            torch.mul(gradient[region], share, out=view)
        variable.target = gradient
        engine.packed(variable)

    return hook
