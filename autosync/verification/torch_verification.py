"""What torch's own engines do, of all that a strategy could say: DistributedDataParallel with a
communication hook or without, and `fully_shard`."""

from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import InvalidStrategy
from autosync.graph import Variable
from autosync.strategy import (
    EXACT,
    AllReduce,
    Encoding,
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
)
from autosync.torch_engine import FullyShard
from autosync.verification.refusals import SHARE_TOLERANCE, variable_refusal


def check_ddp(strategy: Strategy, domain: Domain) -> None:
    """Raises InvalidStrategy where the strategy, of order `ddp`, is not what torch's DDP does."""
    hooked = {shard.encoding for choice in strategy.choices for shard in _reduced(choice)} - {EXACT}
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        shards = _reduced(choice)
        plain = [replace(shard, group=0, encoding=EXACT) == AllReduce(0) for shard in shards]
        if len(choice.shards) > 1 or plain != [True]:
            raise variable_refusal(
                variable,
                "schedule.order",
                "ddp",
                "is not a whole ring all-reduce, which is all that torch's DDP does",
            )
        _check_hook(variable, shards[0], hooked)
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE or strategy.schedule.overlap_forward:
        raise InvalidStrategy(
            "torch's DDP averages replicas evenly and ends before the next forward pass.",
            thing="schedule.order",
            value="ddp",
            remedy="Use order fifo or priority.",
        )


def _reduced(choice: VariableChoice) -> tuple[AllReduce, ...]:
    return tuple(shard for shard in choice.shards if isinstance(shard, AllReduce))


def _check_hook(variable: Variable, shard: AllReduce, hooked: set[Encoding]) -> None:
    """A communication hook packs every bucket alike; PowerSGD's leaves out what is no matrix."""
    if not hooked:
        return
    left_out = shard.encoding == EXACT and all(each.name == "powersgd" for each in hooked)
    if len(hooked) > 1 or not (shard.encoding in hooked or left_out):
        why = "is packed otherwise than others, but torch's DDP has one communication hook"
    elif variable.sparse:
        why = "has a sparse gradient, which no communication hook of DDP's packs"
    else:
        return
    raise variable_refusal(
        variable, "encoding", shard.encoding.name, why, "Use order fifo or priority."
    )


def check_fully_shard(strategy: Strategy, engine: FullyShard, domain: Domain) -> None:
    """Raises InvalidStrategy where the strategy is not what torch's `fully_shard` does."""
    world = domain.world_size
    if world % engine.shard_ranks:
        raise InvalidStrategy(
            f"engine.shard_ranks is {engine.shard_ranks}, which does not divide {world} ranks.",
            thing="engine.shard_ranks",
            value=engine.shard_ranks,
            remedy=f"Give {world}, or a divisor of it.",
        )
    if strategy.schedule != Schedule("fifo", overlap_forward=True):
        raise InvalidStrategy(
            "torch's fully_shard sends as gradients get ready and gathers in the forward pass.",
            thing="schedule",
            value=strategy.schedule.order,
            remedy='Use {"order": "fifo", "overlap_forward": true}.',
        )
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE:
        raise InvalidStrategy(
            "torch's fully_shard averages replicas evenly.", thing="replicas", value=shares[:16]
        )
    group_of: dict[int, int] = {}
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        shard, unit = choice.shards[0], engine.unit_of(variable.name)
        if len(choice.shards) > 1 or replace(shard, group=0) != ReduceScatter(0, True):
            why = "is not a whole exact reduce-scatter with sharded update, as fully_shard has it"
            raise variable_refusal(variable, "synchronizer", shard.kind, why)
        if group_of.setdefault(unit, shard.group) != shard.group:
            raise variable_refusal(
                variable, "group", shard.group, "is not in the group of its unit"
            )
    idle = [unit for number, unit in enumerate(engine.units) if number not in group_of]
    if idle:
        raise InvalidStrategy(
            f"engine.units names {idle[0]!r}, in which no variable is of its own.",
            thing="engine.units",
            value=idle[0],
            remedy="Name modules that hold variables of the graph.",
        )
    if len(set(group_of.values())) < len(group_of):
        raise InvalidStrategy(
            "two units of engine.units share a group, but each is reduced by itself.",
            thing="group",
            value=sorted(group_of.values())[:16],
        )
