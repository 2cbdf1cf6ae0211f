"""What a strategy that lags must be, and how it is described: it has one of two forms throughout.

Pipelined all-reduces (Pipe-SGD, Li et al. 2018), whose sums are applied s iterations later; or
parameter servers with clocks (SSP, Ho et al. 2013), whose values are at most s iterations old.
"""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.staleness.document import iterations_of
from autosync.strategy import EXACT, AllReduce, ParameterServer, Strategy, Synchronizer
from autosync.verification.shard_checks import variable_refusal

REMEDY = (
    "Use plain all_reduce for every variable, or plain parameter_server for every variable; or "
    "staleness 0."
)


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """Raises InvalidStrategy where a strategy that lags is not allowed or has neither form."""
    late = iterations_of(strategy)
    if not allow_inexact:
        raise InvalidStrategy(
            f"the strategy lets a replica lag {late} iterations, which is not exact.",
            thing="staleness",
            value=late,
            remedy="Allow staleness where the training can bear it, or use staleness 0.",
        )
    check_strategy(strategy)
    forms: dict[str, str] = {}
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        for shard in choice.shards:
            if variable.sparse or not is_plain(shard):
                how = f"{shard.kind} of sparse rows" if variable.sparse else shard.kind
                raise variable_refusal(
                    variable,
                    "staleness",
                    late,
                    f"is synchronized by {how}, of a kind that does not lag {late} iterations",
                    REMEDY,
                )
            forms.setdefault(shard.kind, choice.variable)
    if len(forms) > 1:
        names = " and ".join(f"{name!r} by {kind}" for kind, name in forms.items())
        raise InvalidStrategy(
            f"the strategy lags {late} iterations, and synchronizes {names}: the two "
            "lag otherwise.",
            thing="staleness",
            value=late,
            remedy=REMEDY,
        )


def check_strategy(strategy: Strategy) -> None:
    """See `registry.Verification`."""
    late = iterations_of(strategy)
    order = "fully_shard" if strategy.engine is not None else strategy.schedule.order
    if order in ("fully_shard", "ddp"):
        raise InvalidStrategy(
            f"the strategy lags {late} iterations, and torch's {order} does not.",
            thing="staleness",
            value=late,
            remedy=REMEDY,
        )
    if strategy.schedule.overlap_forward:
        raise InvalidStrategy(
            f"the strategy lags {late} iterations, and also lets messages run into "
            "the next forward pass, which staleness does by itself.",
            thing="schedule.overlap_forward",
            value=True,
            remedy="Turn one of the two off.",
        )


def is_plain(shard: Synchronizer) -> bool:
    """Whether it is of a kind that may lag."""
    match shard:
        case AllReduce():
            return (shard.algorithm, shard.device_order, shard.encoding) == ("ring", (), EXACT)
        case ParameterServer():
            plain = not (shard.hierarchical or shard.returns_gradients)
            return plain and shard.encoding == EXACT
    return False


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    """What is late, and by how much."""
    return [_lag(strategy)]


def label(strategy: Strategy) -> str:
    return f"{'clocks' if _has_clocks(strategy) else 'pipelined'}: {_lag(strategy)}"


def _lag(strategy: Strategy) -> str:
    iterations = iterations_of(strategy)
    late = "1 iteration" if iterations == 1 else f"{iterations} iterations"
    clocks = _has_clocks(strategy)
    return f"values at most {late} old" if clocks else f"gradients applied {late} later"


def _has_clocks(strategy: Strategy) -> bool:
    shards = (shard for choice in strategy.choices for shard in choice.shards)
    return any(isinstance(shard, ParameterServer) for shard in shards)
