"""What a strategy that lags must be: one of two forms throughout.

Pipelined all-reduces (Pipe-SGD, Li et al. 2018), whose sums are applied s iterations later; or
parameter servers with clocks (SSP, Ho et al. 2013), whose values are at most s iterations old.
"""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.strategy import EXACT, AllReduce, ParameterServer, Strategy, Synchronizer
from autosync.verification.refusals import variable_refusal

REMEDY = (
    "Use plain all_reduce for every variable, or plain parameter_server for every variable; or "
    "staleness 0."
)


def check_staleness(strategy: Strategy, domain: Domain) -> None:
    """Raises InvalidStrategy where a strategy of a staleness above 0 has neither form."""
    order = "fully_shard" if strategy.engine is not None else strategy.schedule.order
    if order in ("fully_shard", "ddp"):
        raise InvalidStrategy(
            f"the strategy lags {strategy.staleness} iterations, and torch's {order} does not.",
            thing="staleness",
            value=strategy.staleness,
            remedy=REMEDY,
        )
    if strategy.schedule.overlap_forward:
        raise InvalidStrategy(
            f"the strategy lags {strategy.staleness} iterations, and also lets messages run into "
            "the next forward pass, which staleness does by itself.",
            thing="schedule.overlap_forward",
            value=True,
            remedy="Turn one of the two off.",
        )
    forms: dict[str, str] = {}
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        for shard in choice.shards:
            if variable.sparse or not is_plain(shard):
                how = f"{shard.kind} of sparse rows" if variable.sparse else shard.kind
                raise variable_refusal(
                    variable,
                    "staleness",
                    strategy.staleness,
                    f"is synchronized by {how}, of a kind that does not lag "
                    f"{strategy.staleness} iterations",
                    REMEDY,
                )
            forms.setdefault(shard.kind, choice.variable)
    if len(forms) > 1:
        names = " and ".join(f"{name!r} by {kind}" for kind, name in forms.items())
        raise InvalidStrategy(
            f"the strategy lags {strategy.staleness} iterations, and synchronizes {names}: the two "
            "lag otherwise.",
            thing="staleness",
            value=strategy.staleness,
            remedy=REMEDY,
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
