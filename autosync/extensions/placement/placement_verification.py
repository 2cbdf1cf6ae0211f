"""What a placement must satisfy so that the model trains as under plain replicas.

A placed module sees other samples than its replica's own. That is exact where its output for a
sample depends on that sample alone, and where nothing outside reads its variables.
"""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.module_borders import ModuleBorders
from autosync.extensions.placement.placed_module import PlacedModule, placed_module
from autosync.graph import ModelGraph
from autosync.strategy import AllGather, AllReduce, Strategy, VariableChoice

ACROSS_SAMPLES = ("batch_norm", "batchnorm")
"""Parts of the types of operations that take statistics over the samples of a batch: torch's, and
those of modules that a running job's graph consists of."""


def check_placement(strategy: Strategy, domain: Domain) -> None:
    """Refuse by name what would not be exact or could not run.

    Whether it fits the devices' memory is `simulator.memory_check`'s to say.

    Raises:
        InvalidStrategy: names the module or the variable, and why.
    """
    _check_alone(strategy)
    _check_names(strategy)
    for placed in strategy.placement:
        check_module(placed, domain)
    _check_choices(strategy, domain)


def check_module(placed: PlacedModule, domain: Domain) -> None:
    """The same for a module alone."""
    if placed.ranks[-1] >= domain.world_size:
        raise _refusal(
            placed,
            placed.ranks[-1],
            f"lives on rank {placed.ranks[-1]}, of ranks 0 to {domain.world_size - 1}",
        )
    _check_called(placed, domain.graph)
    borders = domain.borders.of(placed.module)
    _check_variables(placed, borders, domain.graph)
    _check_samples(placed, borders, domain.graph)


def _check_alone(strategy: Strategy) -> None:
    """What else a strategy may say that does not go with placed modules."""
    engine = "torch's fully_shard" if strategy.engine is not None else ""
    engine = "torch's DDP" if strategy.schedule.order == "ddp" else engine
    if not engine and not strategy.staleness:
        return
    why = f"{engine} runs it" if engine else f"its replicas lag {strategy.staleness} iterations"
    raise InvalidStrategy(
        f"the strategy places modules, but {why}: both do not go together.",
        thing="placement",
        value=[placed.module for placed in strategy.placement[:8]],
        remedy="Use order fifo, priority or explicit, no engine and staleness 0.",
    )


def _check_names(strategy: Strategy) -> None:
    seen: list[PlacedModule] = []
    for placed in strategy.placement:
        for other in seen:
            if other.module == placed.module:
                raise _refusal(placed, placed.module, "is placed twice", "Place it once.")
            if other.holds(placed.module) or placed.holds(other.module):
                inner, outer = sorted((placed.module, other.module), key=len, reverse=True)
                raise _refusal(
                    placed,
                    placed.module,
                    f"overlaps another: {inner!r} is inside {outer!r}",
                    "Place either the block or its parts.",
                )
        seen.append(placed)


def _check_called(placed: PlacedModule, graph: ModelGraph) -> None:
    if placed.module not in graph.uncalled:
        return
    around = (v.name.rpartition(".")[0] for v in graph.variables if placed.holds(v.name))
    called = next((name for name in around if name not in {placed.module, *graph.uncalled}), None)
    raise _refusal(
        placed,
        placed.module,
        "is never called, so nothing can be dealt to it",
        f"Place what it holds, such as {called!r}." if called else "Leave it with the replicas.",
    )


def _check_variables(placed: PlacedModule, borders: ModuleBorders, graph: ModelGraph) -> None:
    inside, held = set(borders.operations), set(borders.variables)
    if not held:
        raise _refusal(placed, 0, "holds no variable", "Place modules that hold variables.")
    for index, operation in enumerate(graph.operations):
        for variable in operation.variables:
            name = graph.variables[variable].name
            if index in inside and variable not in held:
                raise _refusal(placed, name, f"reads {name!r}, a variable of another module")
            if index not in inside and variable in held:
                raise _refusal(
                    placed,
                    name,
                    f"holds {name!r}, which operation {operation.name!r} outside of it reads",
                    "Place the smallest module around all its readers.",
                )


def _check_samples(placed: PlacedModule, borders: ModuleBorders, graph: ModelGraph) -> None:
    """Of what the graph tells; the runtime compares one sample alone with the same in its batch."""
    if not any(graph.operations[index].has_batch_dimension for index in borders.leaving):
        raise _refusal(
            placed, placed.module, "gives out nothing that is known to have the batch dimension"
        )
    for index in borders.operations:
        operation = graph.operations[index]
        if any(part in operation.type for part in ACROSS_SAMPLES):
            raise _refusal(
                placed,
                operation.name,
                f"takes statistics over the samples of a batch ({operation.name!r})",
                "Leave it with the replicas.",
            )
        batched = any(graph.operations[i].has_batch_dimension for i in operation.inputs)
        if batched and not operation.has_batch_dimension:
            raise _refusal(
                placed,
                operation.name,
                f"has operation {operation.name!r}, whose output is not known to have the batch "
                "dimension of what it reads",
                "Leave it with the replicas.",
            )
    for source, reader in borders.entering:
        if not graph.operations[source].has_batch_dimension:
            raise _refusal(
                placed,
                graph.operations[source].name,
                f"reads {graph.operations[source].name!r} in {graph.operations[reader].name!r}, "
                "which is not known to have the batch dimension, so it cannot be dealt",
                "Place the smallest module that holds both.",
            )


def _check_choices(strategy: Strategy, domain: Domain) -> None:
    members: dict[int, PlacedModule | None] = {}
    world = domain.world_size
    for choice in strategy.choices:
        placed = placed_module(strategy.placement, choice.variable)
        apart = placed if placed is not None and len(placed.ranks) < world else None
        if apart is not None:
            _check_choice(apart, choice)
        for shard in choice.shards:
            other = members.setdefault(shard.group, apart)
            if (apart.ranks if apart else ()) != (other.ranks if other else ()):
                raise InvalidStrategy(
                    f"variable {choice.variable!r} shares group {shard.group} with variables that "
                    "live on other ranks.",
                    thing=f"variable {choice.variable}, group",
                    value=shard.group,
                    remedy="Give modules on different ranks groups of their own.",
                )
    if None not in members.values():
        raise InvalidStrategy(
            "every variable is placed on some of the ranks: an iteration begins and ends with "
            "those that all ranks hold.",
            thing="placement",
            value=[placed.module for placed in strategy.placement[:8]],
            remedy="Leave a module with the replicas, or place one on all ranks.",
        )


def _check_choice(placed: PlacedModule, choice: VariableChoice) -> None:
    for shard in choice.shards:
        if isinstance(shard, AllGather):
            if len(placed.ranks) > 1:
                raise _refusal(
                    placed,
                    choice.variable,
                    f"holds {choice.variable!r}, whose gradient is sparse, on some of the ranks",
                    "Place it on one rank, or on all.",
                )
        elif not isinstance(shard, AllReduce) or shard != AllReduce(shard.group):
            raise InvalidStrategy(
                f"variable {choice.variable!r} lives on ranks {placed.ranks}, which synchronize it "
                "by a plain ring all-reduce among themselves.",
                thing=f"variable {choice.variable}, synchronizer",
                value=shard.kind,
                remedy="Use all_reduce without device order and encoding (all_gather where its "
                "gradient is sparse).",
            )


def _refusal(placed: PlacedModule, value: object, why: str, remedy: str = "") -> InvalidStrategy:
    return InvalidStrategy(
        f"placement: module {placed.module!r} {why}.",
        thing=f"placement of {placed.module}",
        value=value,
        remedy=remedy,
    )
