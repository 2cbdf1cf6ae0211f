"""A domain's strategy under torch's `fully_shard`, over the modules that one would wrap by hand."""

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.strategy import (
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    whole,
)
from autosync.torch_engine import FullyShard, usual_units


def fully_sharded(domain: Domain, shard_ranks: int, reshard_after_forward: bool = True) -> Strategy:
    """See `FullyShard` for the arguments.

    Raises:
        NotSupported: the variables' names tell no modules to wrap.
        InvalidStrategy: there are fewer than two ranks to share with.
    """
    names = [variable.name for variable in domain.graph.variables]
    usual = usual_units(names)
    if not usual:
        raise NotSupported(
            "the variables' names tell no modules that fully_shard could gather one by one.",
            thing="engine.units",
            value=names[:4],
        )
    all_units = FullyShard(usual, shard_ranks, reshard_after_forward)
    held = {all_units.unit_of(name) for name in names}
    units = tuple(unit for number, unit in enumerate(usual) if number in held)
    engine = FullyShard(units, shard_ranks, reshard_after_forward)
    choices = tuple(
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (ReduceScatter(engine.unit_of(variable.name), sharded_update=True),),
        )
        for variable in domain.graph.variables
    )
    schedule = Schedule("fifo", overlap_forward=True)
    replicas = even_replicas(domain.world_size)
    return Strategy(choices, replicas, schedule, engine=engine).canonical()
