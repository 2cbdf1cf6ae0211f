"""A domain's strategies under torch's `fully_shard`."""

from autosync.domain import Domain
from autosync.errors import NotSupported
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


def fully_sharded(domain: Domain, shard_ranks: int, reshard_after_forward: bool = True) -> Strategy:
    """Over the modules that one would wrap by hand. See `FullyShard` for the arguments.

    Raises:
        NotSupported: as `held_units`.
        InvalidStrategy: there are fewer than two ranks to share with.
    """
    return sharded_by(domain, FullyShard(held_units(domain), shard_ranks, reshard_after_forward))


def held_units(domain: Domain) -> tuple[str, ...]:
    """The modules that one would wrap by hand, without those that hold no variable of their own.

    Raises:
        NotSupported: a variable is a scalar, or the variables' names tell no modules to wrap.
    """
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
    if not usual:
        raise NotSupported(
            "the variables' names tell no modules that fully_shard could gather one by one.",
            thing="engine.units",
            value=names[:4],
        )
    all_units = FullyShard(usual, shard_ranks=2)
    held = {all_units.unit_of(name) for name in names}
    return tuple(unit for number, unit in enumerate(usual) if number in held)


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
