"""What a tuning request must fulfil before anything of it is stored."""

from collections.abc import Mapping

from autosync.api.engine.registry import check_launcher
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.spec import SCALES
from autosync.domain import Domain, optimizer_named
from autosync.errors import InvalidInput
from autosync.optimizers import DENSE_OPTIMIZERS
from autosync.search.space import Space
from autosync.strategy import ParameterServer
from autosync.trials.request_names import ComputeKind
from autosync.verification import check_runnable, check_slices

MOST_GROUPS = 100_000
"""Of parts or groups; no model here has so many variables."""
MOST_STATE_TENSORS = 16


def check_request(request: TuningRequest) -> None:
    """
    Raises:
        InvalidInput: a pin does not fit the graph, a scale or count is out of range, nobody knows
            the optimizer, no strategy fits the devices' memory, or compute and device do not go
            with the rest.
        InvalidStrategy, NotSupported: a pin cannot be run, or slices would be too many.
        NotSupported: the operator has not set up the launcher.
    """
    check_launcher(request.launcher)
    check_optimizer(request.domain)
    check_counts(request.space)
    for slice_bytes in request.space.slice_bytes:
        check_slices(slice_bytes, request.domain)
    check_pins(request.space, request.domain)
    check_scales(request.byte_scale, request.time_scale)
    check_placement(request)
    from autosync.search.designs.design_table import check_any_fits  # loads numba

    check_any_fits(request.domain, request.searched)
    _ = request.workload  # checks itself


def check_placement(request: TuningRequest) -> None:
    """
    Raises:
        InvalidInput: modules may be placed, and kernels compute, which run whole batches.
    """
    if request.space.placement and request.compute == "kernels":
        raise InvalidInput(
            "the space places modules, but a replay that runs kernels computes whole batches.",
            thing="space.placement",
            value=True,
            remedy="Choose compute waited, or leave placement out.",
        )


def refuse_unused(compute: ComputeKind, given: Mapping[str, object]) -> None:
    """given: what a profile can be made from, by its name in the request; None where left out.

    Raises:
        InvalidInput: kernels are to compute, whose profile is measured, and one is given.
    """
    if compute == "kernels":
        refuse_given(
            given,
            "on kernels: what they take is measured before the search",
            "Leave it out, or choose compute waited, which waits as it says.",
        )


def refuse_given(given: Mapping[str, object], where: str, remedy: str) -> None:
    """given: what has no effect `where`, by its name; None where left out.

    Raises:
        InvalidInput: one is given.
    """
    for thing, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{thing} has no effect {where}.",
                thing=thing,
                value=getattr(value, "note", value),
                remedy=remedy,
            )


def check_pins(space: Space, domain: Domain) -> None:
    """Refuses pins for another graph, and those that no trial could run.

    Raises:
        InvalidInput: a pin does not fit the graph, or names an owner below 0.
        InvalidStrategy: no strategy of the domain can have the pinned choices; says why.
        NotSupported: a pinned owner is a dedicated server host.
    """
    check_runnable(space.pins, domain.world_size)
    variables = {variable.name: variable for variable in domain.graph.variables}
    for pin in space.pins:
        if pin.variable not in variables:
            raise InvalidInput(
                f"a pin names variable {pin.variable!r}, which graph {domain.graph.name!r} "
                "does not have.",
                thing="space.pins",
                value=pin.variable,
                remedy="Pin variables of this graph; GET /v1/graphs/{id} lists them.",
            )
        owners = [shard.server for shard in pin.shards if isinstance(shard, ParameterServer)]
        if min(owners, default=0) < 0:
            raise InvalidInput(
                f"the pin of {pin.variable!r} names owner {min(owners)}; ranks count from 0.",
                thing="space.pins",
                value=min(owners),
                remedy=f"Let a rank own it, 0 to {domain.world_size - 1}.",
            )
        shape, axis = variables[pin.variable].shape, pin.partition.axis
        length = variables[pin.variable].elements
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
    if space.pins:
        from autosync.search import domain_facts  # loads numba

        domain_facts.check_pins(domain, space)


def check_scales(byte_scale: float, time_scale: float) -> None:
    """Raises InvalidInput where one is out of `SCALES`."""
    for name, value in (("byte_scale", byte_scale), ("time_scale", time_scale)):
        least, most = SCALES[name]
        if not least <= value <= most:
            raise InvalidInput(
                f"{name} is {value}; it must lie between {least:g} and {most:g}.",
                thing=name,
                value=value,
                remedy=f"Leave {name} out, or give 1 to move real sizes at real speed.",
            )


def check_optimizer(domain: Domain) -> None:
    """Raises InvalidInput where no trial could make the optimizer, or it cannot be."""
    optimizer_named(domain.optimizer.name)
    name, tensors = domain.optimizer.name, domain.optimizer.state_tensors
    if not 0 <= tensors <= MOST_STATE_TENSORS:
        raise InvalidInput(
            f"an optimizer with {_short(tensors)} tensors of state a variable cannot be.",
            thing="optimizer.state_tensors",
            value=_short(tensors),
            remedy=f"Give 0 to {MOST_STATE_TENSORS}: SGD keeps 0, momentum 1, Adam 2.",
        )
    if name in DENSE_OPTIMIZERS and any(variable.sparse for variable in domain.graph.variables):
        raise InvalidInput(
            f"{name} takes no sparse gradients, which variables of this graph have.",
            thing="optimizer.name",
            value=name,
            remedy="Use sgd, momentum or adagrad, or a model with dense gradients.",
        )


def check_counts(space: Space) -> None:
    """Raises InvalidInput where a count of the space is more than any search can use."""
    counts = [(name, getattr(space, name)) for name in ("max_parts", "max_groups")]
    groups = [shard.group for pin in space.pins for shard in pin.shards if hasattr(shard, "group")]
    for name, value in (*counts, *(("pins", group) for group in groups)):
        if not 0 <= value <= MOST_GROUPS:
            raise InvalidInput(
                f"space.{name} has a count of {_short(value)}.",
                thing=f"space.{name}",
                value=_short(value),
                remedy=f"Give a number from 0 to {MOST_GROUPS}.",
            )


def _short(count: int) -> str:
    """A whole number of any length; Python prints none of more than 4,300 digits."""
    return str(count) if abs(count) < 2**63 else f"{'-' if count < 0 else ''}2^{count.bit_length()}"
