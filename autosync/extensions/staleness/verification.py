"""What a strategy that lags must be, and how it is described: parameter servers with clocks (SSP,
Ho et al. 2013) synchronize all of its variables, and values are at most s iterations old."""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.staleness.document import iterations_of
from autosync.strategy import EXACT, ParameterServer, Strategy, Synchronizer
from autosync.verification.shard_checks import variable_refusal

REMEDY = "Use plain parameter_server for every variable; or staleness 0."


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """Raises InvalidStrategy where a strategy that lags is not allowed or cannot run."""
    late = iterations_of(strategy)
    if not allow_inexact:
        raise InvalidStrategy(
            f"the strategy lets a replica lag {late} iterations, which is not exact.",
            thing="staleness",
            value=late,
            remedy="Allow staleness where the training can bear it, or use staleness 0.",
        )
    check_strategy(strategy)
    if domain.cluster.backend == "nccl":
        raise InvalidStrategy(
            f"the strategy lags {late} iterations, but NCCL's messages occupy a device until "
            "their peers come.",
            thing="staleness",
            value=late,
            remedy="Use backend gloo with models in host memory, or staleness 0.",
        )
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
            f"the strategy lags {late} iterations, and also lets messages continue during "
            "the next forward pass, which staleness does by itself.",
            thing="schedule.overlap_forward",
            value=True,
            remedy="Turn one of the two off.",
        )


def is_plain(shard: Synchronizer) -> bool:
    """Whether it is of a kind that may lag."""
    if not isinstance(shard, ParameterServer) or shard.hierarchical or shard.returns_gradients:
        return False
    return shard.encoding == EXACT


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    """How old values may be."""
    return [label(strategy)]


def label(strategy: Strategy) -> str:
    late = iterations_of(strategy)
    return f"values at most {late} iteration{'s' if late > 1 else ''} old"
