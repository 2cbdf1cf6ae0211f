"""What may be swapped beside the rest of a strategy, and how such strategies are described."""

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.placement.document import Placement
from autosync.extensions.staleness.document import Staleness
from autosync.strategy import ParameterServer, ReduceScatter, Strategy, Synchronizer


def verify(strategy: Strategy, domain: Domain, allow_inexact: bool) -> None:
    """See `check_strategy`, which needs no domain."""
    check_strategy(strategy)


def check_strategy(strategy: Strategy) -> None:
    """Raises InvalidStrategy where activations are swapped that torch's engine takes care of, or
    beside placed modules; or optimizer state, where ranks update it in parts, or at any time; or
    values."""
    swap = strategy.extension(Offload)
    assert swap is not None
    check_values_stay(swap)
    if strategy.engine is not None:
        raise InvalidStrategy(
            "the strategy swaps activations, but torch's fully_shard runs it, which gives memory "
            "back that activations refer to.",
            thing="swap.budget_bytes",
            value=swap.budget_bytes,
            remedy="Leave swap out, or shard optimizer state only (zero1).",
        )
    if strategy.extension(Placement) is not None:
        raise InvalidStrategy(
            "the strategy swaps activations and places modules on ranks of their own: what is idle "
            "on each rank is then not known.",
            thing="swap.budget_bytes",
            value=swap.budget_bytes,
            remedy="Leave one of the two out.",
        )
    if swap.optimizer_state and (why := _why_state_stays(strategy)):
        raise InvalidStrategy(
            f"the strategy swaps optimizer state, but {why}.",
            thing="swap.optimizer_state",
            value=True,
            remedy="Leave optimizer_state out, or synchronize so that every rank updates every "
            "variable within step(): by all-reduces or torch's DDP.",
        )


def check_values_stay(swap: Offload) -> None:
    """Raises InvalidStrategy where a stored strategy swaps values of parameters."""
    if swap.values:
        raise InvalidStrategy(
            "the strategy swaps values of parameters around the operations that read them, which "
            "this version of autosync does not do any more.",
            thing="swap.values",
            value=True,
            remedy="Leave values out: activations, and optimizer state where asked, are swapped.",
        )


def _why_state_stays(strategy: Strategy) -> str:
    """Empty where every rank updates all state within `step()`."""
    if strategy.extension(Staleness) is not None:
        return "its updates are late: they run while forward and backward passes do"
    if strategy.schedule.overlap_forward:
        return "its updates continue during the next forward pass, so that it is needed at any time"
    for choice in strategy.choices:
        for shard in choice.shards:
            if owner := _owner_of(shard):
                return f"variable {choice.variable!r} is updated by {owner}"
    return ""


def _owner_of(shard: Synchronizer) -> str:
    if isinstance(shard, ParameterServer) and not shard.returns_gradients:
        return "its parameter server, which alone has its state"
    if isinstance(shard, ReduceScatter) and shard.sharded_update:
        return "all ranks in parts (sharded_update), each of which has its part of the state"
    return ""


def describe(strategy: Strategy, domain: Domain | None) -> list[str]:
    """What is swapped, and within what budget."""
    swap = strategy.extension(Offload)
    assert swap is not None
    return [f"{swapped_in_words(swap)} swapped to host memory within {_budget(swap)}"]


def label(strategy: Strategy) -> str:
    swap = strategy.extension(Offload)
    assert swap is not None
    return f"{swapped_in_words(swap)} swapped, {_budget(swap)}"


def swapped_in_words(swap: Offload) -> str:
    """What waits on the host."""
    return "activations and optimizer state" if swap.optimizer_state else "activations"


def _budget(swap: Offload) -> str:
    return f"{swap.budget_bytes / 1e9:.3g} GB"
