"""What a tuning request must fulfil before anything of it is stored."""

from collections.abc import Mapping

from autosync.api.engine.registry import check_launcher
from autosync.api.engine.tuning_request import TuningRequest
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.search.space import Space
from autosync.trials.request_names import ComputeKind
from autosync.verification import check_runnable


def check_request(request: TuningRequest) -> None:
    """
    Raises:
        InvalidInput: a pin does not fit the graph, a scale is out of range, or compute and device
            do not go with the rest.
        NotSupported: the operator has not set up the launcher, or a pin cannot be run.
    """
    check_launcher(request.launcher)
    check_pins(request.space, request.domain)
    check_scales(request.byte_scale, request.time_scale)
    _ = request.workload  # checks itself


def refuse_unused(compute: ComputeKind, given: Mapping[str, object]) -> None:
    """given: what a profile can be made from, by its name in the request; None where left out.

    Raises:
        InvalidInput: kernels are to compute, whose profile is measured, and one is given.
    """
    for thing, value in given.items():
        if compute == "kernels" and value is not None:
            raise InvalidInput(
                f"{thing} has no effect on kernels: what they take is measured before the search.",
                thing=thing,
                value=getattr(value, "note", value),
                remedy=f"Leave {thing} out, or choose compute waited, which waits as it says.",
            )


def check_pins(space: Space, domain: Domain) -> None:
    """Refuses pins for another graph, and those that no trial could run.

    Raises:
        InvalidInput: a pin does not fit the graph.
        NotSupported: a pinned owner is a dedicated server host.
    """
    check_runnable(space.pins, domain.world_size)
    shapes = {variable.name: variable.shape for variable in domain.graph.variables}
    for pin in space.pins:
        if pin.variable not in shapes:
            raise InvalidInput(
                f"a pin names variable {pin.variable!r}, which graph {domain.graph.name!r} "
                "does not have.",
                thing="space.pins",
                value=pin.variable,
                remedy="Pin variables of this graph; GET /v1/graphs/{id} lists them.",
            )
        shape, axis = shapes[pin.variable], pin.partition.axis
        length = domain.graph.variables[list(shapes).index(pin.variable)].elements
        if axis != -1:
            length = shape[axis] if 0 <= axis < len(shape) else 0
        if sum(pin.partition.lengths) != length:
            raise InvalidInput(
                f"the pin of {pin.variable!r} cuts axis {axis} into {pin.partition.lengths[:8]}, "
                f"but its shape is {shape}.",
                thing="space.pins",
                value=pin.partition.lengths[:8],
                remedy="The lengths must add up to that dimension (all elements for axis -1).",
            )


def check_scales(byte_scale: float, time_scale: float) -> None:
    for name, value, most in (("byte_scale", byte_scale, 1.0), ("time_scale", time_scale, 1000.0)):
        if not 0 < value <= most:
            raise InvalidInput(
                f"{name} is {value}; it must lie above 0 and not exceed {most:g}.",
                thing=name,
                value=value,
                remedy=f"Leave {name} out, or give 1 to move real sizes at real speed.",
            )
