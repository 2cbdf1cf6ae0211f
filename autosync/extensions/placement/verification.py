"""What a placement must satisfy so that the model trains as under plain replicas, and how it is
described.

A placed module sees other samples than its replica's own. That is exact where its output for a
sample depends on that sample alone, and where nothing outside reads its variables.
"""

from itertools import pairwise

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    modules_of,
    placed_module,
)
from autosync.extensions.placement.module_borders import ModuleBorders, borders_of
from autosync.extensions.staleness.document import Staleness
from autosync.graph import ModelGraph
from autosync.strategy import AllGather, AllReduce, Strategy, VariableChoice
from autosync.strategy_description import size_in_words

ACROSS_SAMPLES = ("batch_norm", "batchnorm")
"""Parts of the types of operations that take statistics over the samples of a batch: torch's, and
those of modules that a running job's graph consists of."""


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """Refuse by name what would not be exact or could not run.

    Whether it fits the devices' memory is `memory.memory_check`'s to say.

    Raises:
        InvalidStrategy: names the module or the variable, and why.
    """
    check_strategy(strategy)
    modules = modules_of(strategy)
    for placed in modules:
        check_module(placed, domain)
    _check_choices(strategy, modules, domain)


def check_strategy(strategy: Strategy) -> None:
    """See `registry.Verification`."""
    modules = modules_of(strategy)
    _check_alone(strategy, modules)
    _check_names(modules)


def check_module(placed: PlacedModule, domain: Domain) -> None:
    """The same for a module alone."""
    if placed.ranks[-1] >= domain.world_size:
        raise _refusal(
            placed,
            placed.ranks[-1],
            f"lives on rank {placed.ranks[-1]}, of ranks 0 to {domain.world_size - 1}",
        )
    _check_called(placed, domain.graph)
    borders = borders_of(domain.graph, placed.module)
    _check_variables(placed, borders, domain.graph)
    _check_samples(placed, borders, domain.graph)


def _check_alone(strategy: Strategy, modules: PlacedModules) -> None:
    """What else a strategy may say that does not go with placed modules."""
    engine = "torch's fully_shard" if strategy.engine is not None else ""
    engine = "torch's DDP" if strategy.schedule.order == "ddp" else engine
    late = strategy.extension(Staleness)
    if not engine and late is None:
        return
    why = f"{engine} runs it"
    if late is not None and not engine:
        why = f"its replicas lag {late.iterations} iterations"
    raise InvalidStrategy(
        f"the strategy places modules, but {why}: both do not go together.",
        thing="placement",
        value=[placed.module for placed in modules[:8]],
        remedy="Use order fifo, priority or explicit, no engine and staleness 0.",
    )


def _check_names(modules: PlacedModules) -> None:
    # in this order what a module holds comes next to it
    ordered = sorted(modules, key=lambda placed: f"{placed.module}.")
    for outer, placed in pairwise(ordered):
        if outer.module == placed.module:
            raise _refusal(placed, placed.module, "is placed twice", "Place it once.")
        if outer.holds(placed.module):
            raise _refusal(
                placed,
                placed.module,
                f"overlaps another: {placed.module!r} is inside {outer.module!r}",
                "Place either the block or its parts.",
            )


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
    """By the graph alone; the runtime compares one sample alone with the same in its batch."""
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


def _check_choices(strategy: Strategy, modules: PlacedModules, domain: Domain) -> None:
    members: dict[int, PlacedModule | None] = {}
    world = domain.world_size
    for choice in strategy.choices:
        placed = placed_module(modules, choice.variable)
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
            value=[placed.module for placed in modules[:8]],
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


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    """Where placed modules live, and the bytes of their values; many of the same ranks together."""
    world = len(strategy.replicas)
    by_place: dict[str, list[PlacedModule]] = {}
    for placed in modules_of(strategy):
        by_place.setdefault(placed.place(world), []).append(placed)
    return [f"{_named(alike, domain)} on {place}" for place, alike in by_place.items()]


def label(strategy: Strategy) -> str:
    return f"{len(modules_of(strategy))} placed"


def _named(alike: list[PlacedModule], domain: Domain | None) -> str:
    words = " and ".join(placed.module for placed in alike)
    words = words if len(alike) <= 2 else f"{len(alike)} modules"
    if domain is None:
        return words
    held = (v.size_bytes for v in domain.graph.variables if placed_module(alike, v.name))
    return f"{words} ({size_in_words(sum(held))})"


def _refusal(placed: PlacedModule, value: object, why: str, remedy: str = "") -> InvalidStrategy:
    return InvalidStrategy(
        f"placement: module {placed.module!r} {why}.",
        thing=f"placement of {placed.module}",
        value=value,
        remedy=remedy,
    )
