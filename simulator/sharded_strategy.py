"""A domain's strategies under torch's `fully_shard`."""

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.graph import ModelGraph
from autosync.strategy import (
    EXACT,
    Encoding,
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    whole,
)
from autosync.torch_engine import FullyShard, usual_units

MOST_FROZEN = 0.02
"""Bytes of frozen parameters over those of trained ones, beyond which what is gathered of them
matters."""


def fully_sharded(domain: Domain, shard_ranks: int, reshard_after_forward: bool = True) -> Strategy:
    """Over the modules that one would wrap by hand. See `FullyShard` for the arguments.

    Raises:
        NotSupported: as `held_units`.
        InvalidStrategy: there are fewer than two ranks to share with.
    """
    return sharded_by(domain, FullyShard(held_units(domain), shard_ranks, reshard_after_forward))


def held_units(domain: Domain) -> tuple[str, ...]:
    """The modules that one would wrap by hand, without those that share a variable with what is
    outside of them, which `fully_shard` cannot part, and those that are never called, whose values
    it would not gather (an attention's output projection). Their variables stay in the root.

    Raises:
        NotSupported: many parameters are frozen, a variable is a scalar, or the variables' names
            tell no modules to wrap.
    """
    if (frozen_bytes := domain.graph.frozen_bytes) > MOST_FROZEN * domain.graph.size_bytes:
        raise NotSupported(
            f"fully_shard would gather {frozen_bytes / 1e9:.3g} GB of frozen parameters, too, "
            "which neither predictions nor replayed trials count.",
            thing="graph.frozen_bytes",
            value=frozen_bytes,
            remedy="Tune in the job itself: autosync.tune(..., space='fsdp2').",
        )
    scalar = next((each for each in domain.graph.variables if not each.shape), None)
    if scalar is not None:
        raise NotSupported(
            f"variable {scalar.name!r} has no dimension that fully_shard could cut.",
            thing=f"variable {scalar.name}",
            value=scalar.shape,
            remedy="Give it the shape (1,), or choose another strategy.",
        )
    names = [variable.name for variable in domain.graph.variables]
    usual = usual_units(names)
    sharing = _sharing_units(domain.graph, FullyShard(usual, shard_ranks=2))
    apart = sharing.union(n for n, unit in enumerate(usual) if unit in domain.graph.uncalled)
    held = tuple(unit for number, unit in enumerate(usual) if number not in apart)
    if not held:
        raise NotSupported(
            "the variables' names tell no modules with weights of their own, which fully_shard "
            "could gather one by one.",
            thing="engine.units",
            value=names[:4],
        )
    return held


def _sharing_units(graph: ModelGraph, engine: FullyShard) -> set[int]:
    """Those with a tied variable, which a module of another unit or of the root reads beside the
    module that holds it. A module around the holder reads it without holding it itself, as a
    penalty on all weights does."""
    readers: dict[int, set[str]] = {}
    for operation in graph.operations:
        for index in operation.variables:
            readers.setdefault(index, set()).add(operation.name.rpartition(".")[0])
    found: set[int] = set()
    for index, modules in readers.items():
        holder = graph.variables[index].name.rpartition(".")[0]
        if holder and holder in modules:
            others = {each for each in modules if not f"{holder}.".startswith(f"{each}.")}
            units = {engine.unit_of(f"{each}.") for each in (holder, *others - {""})}
            if len(units) > 1:
                found |= units
    return found


def sharded_by(domain: Domain, engine: FullyShard, encoding: Encoding = EXACT) -> Strategy:
    """encoding: the type in which gradients are reduced, where that is not their own."""
    choices = tuple(
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (ReduceScatter(engine.unit_of(variable.name), True, encoding),),
        )
        for variable in domain.graph.variables
    )
    schedule = Schedule("fifo", overlap_forward=True)
    replicas = even_replicas(domain.world_size)
    return Strategy(choices, replicas, schedule, engine=engine).canonical()
