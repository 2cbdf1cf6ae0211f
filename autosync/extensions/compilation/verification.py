"""Which strategies may compile regions of a model, and how these are described."""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.compilation.document import CompiledRegions
from autosync.strategy import Factors, Strategy


def check_strategy(strategy: Strategy) -> None:
    """Raises InvalidStrategy where torch's own engines run it, which cut graphs by their own
    buckets; beside other extensions that work within a forward pass; or where a gradient travels as
    factors, which hooks within a region would collect."""
    entry = strategy.extension(CompiledRegions)
    assert entry is not None
    why = ""
    if strategy.run_by_torch:
        engine = "fully_shard" if strategy.engine is not None else "DDP"
        why = f"torch's {engine} runs it"
    others = [each.key for each in strategy.extensions if each.key in BESIDE_NONE]
    if others:
        why = f"it has {others[0]!r}, too"
    for choice in strategy.choices:
        if any(isinstance(shard, Factors) for shard in choice.shards):
            why = f"the gradient of {choice.variable!r} travels as two factors"
    if why:
        raise InvalidStrategy(
            f"the strategy compiles regions of the model, but {why}.",
            thing="compile_regions",
            value=entry.regions[:8],
            remedy="Leave compile_regions out.",
        )


BESIDE_NONE = ("placement", "staleness", "swap")


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """Raises InvalidStrategy as `check_strategy`, or where a region begins with no module of the
    model, or out of order."""
    check_strategy(strategy)
    entry = strategy.extension(CompiledRegions)
    assert entry is not None
    uses = [first_use(domain, name) for name in entry.begins_with]
    for name, use in zip(entry.begins_with, uses, strict=True):
        if use < 0:
            raise InvalidStrategy(
                f"compile_regions: {domain.graph.name!r} has no trained module {name!r}.",
                thing="compile_regions",
                value=name,
                remedy="Begin regions with modules that own parameters.",
            )
    if uses != sorted(set(uses)):
        raise InvalidStrategy(
            f"compile_regions: the forward pass calls {', '.join(entry.begins_with[:8])} in "
            "another order.",
            thing="compile_regions",
            value=entry.begins_with[:8],
            remedy="Name regions in the order of the forward pass.",
        )


def first_use(domain: Domain, module: str) -> int:
    """The first operation that reads a variable of the module; -1 where it owns none."""
    variables = domain.graph.variables
    own = [at for at, each in enumerate(variables) if each.name.startswith(f"{module}.")]
    return min((int(domain.variables.first_use[at]) for at in own), default=-1)


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    return [label(strategy)]


def label(strategy: Strategy) -> str:
    entry = strategy.extension(CompiledRegions)
    assert entry is not None
    count = len(entry.regions)
    return f"compiled in {count} regions" if count != 1 else "compiled in one region"
