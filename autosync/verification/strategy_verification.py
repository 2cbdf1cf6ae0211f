"""Checks that a strategy can run on a domain and synchronizes it exactly."""

from collections.abc import Iterable
from dataclasses import replace
from math import fsum

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.extensions.registry import verification_of
from autosync.graph import ITEM_BYTES, Variable
from autosync.strategy import (
    EXACT,
    AllReduce,
    Encoding,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
)
from autosync.torch_engine import FullyShard
from autosync.verification.shard_checks import (
    SHARE_TOLERANCE,
    check_exact,
    check_partition,
    check_shard,
    variable_refusal,
)


def verify(
    strategy: Strategy, domain: Domain, *, allow_lossy: bool = False, allow_inexact: bool = False
) -> None:
    """Refuse a strategy that cannot run on the domain or does not synchronize it.

    Owners may be dedicated server hosts, which can be predicted; see `check_runnable`.
    allow_lossy: messages may lose information. allow_inexact: so may what an extension does, such
    as late updates.

    Raises:
        InvalidStrategy: names the variable (or the field) and the reason.
    """
    _check_variables(strategy, domain)
    _check_replicas(strategy, domain)
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        check_partition(variable, choice)
        for shard in _kinds_of(choice):
            check_shard(strategy, variable, choice, shard, domain)
            if not allow_lossy:
                check_exact(variable, shard)
    _check_groups(strategy, domain)
    _check_schedule(strategy, domain)
    if strategy.engine is not None and strategy.engine.param_dtype and not allow_lossy:
        name = strategy.engine.param_dtype
        raise InvalidStrategy(
            f"engine.param_dtype is {name!r}: values are gathered and computed with in {name}, "
            "which loses information.",
            thing="engine.param_dtype",
            value=name,
            remedy="Allow lossy messages, or leave param_dtype out.",
        )
    for entry in strategy.extensions:
        verification_of(entry.key).verify(strategy, domain, allow_inexact)


def _kinds_of(choice: VariableChoice) -> Iterable[Synchronizer]:
    """Its shards; of shards that differ only by their group, one."""
    if len(choice.shards) == 1:
        return choice.shards
    return dict.fromkeys(replace(shard, group=0) for shard in choice.shards)


def check_runnable(choices: Iterable[VariableChoice], world_size: int) -> None:
    """Refuse a strategy that is valid and can be predicted, but not run, because only ranks take
    part in training.

    Raises:
        NotSupported: a dedicated server host owns a shard; names the variable.
    """
    for choice in choices:
        for shard in choice.shards:
            if isinstance(shard, ParameterServer) and shard.server >= world_size:
                raise NotSupported(
                    f"variable {choice.variable!r} is owned by server {shard.server}, a dedicated "
                    "server host: that can be predicted, but not run, for ranks alone take part "
                    "in training.",
                    thing=f"variable {choice.variable}",
                    value=shard.server,
                    remedy=f"Let a rank own it, 0 to {world_size - 1}.",
                )


def _check_variables(strategy: Strategy, domain: Domain) -> None:
    names = [variable.name for variable in domain.graph.variables]
    given = [choice.variable for choice in strategy.choices]
    if given == names:
        return
    known, chosen = set(names), set(given)
    odd = [name for name in given if name not in known]
    missing = [name for name in names if name not in chosen]
    named = odd or missing or [a for a, b in zip(given, names, strict=False) if a != b] or given
    what = "does not exist" if odd else "has no choice" if missing else "is out of order"
    raise InvalidStrategy(
        f"variable {named[0]!r} {what}: the strategy has {len(given)} variables, graph "
        f"{domain.graph.name!r} has {len(names)}.",
        thing=f"variable {named[0]}",
        value=named[0],
        remedy="This strategy belongs to another graph: rank strategies for this one.",
    )


def _check_replicas(strategy: Strategy, domain: Domain) -> None:
    ranks = sorted(replica.rank for replica in strategy.replicas)
    if ranks != list(range(domain.world_size)):
        raise InvalidStrategy(
            f"the strategy places replicas on ranks {ranks[:16]}; cluster {domain.cluster.name!r} "
            f"has ranks 0 to {domain.world_size - 1}, and each holds one replica.",
            thing="replicas",
            value=ranks[:16],
            remedy="Rank strategies for this cluster.",
        )
    shares = [replica.share for replica in strategy.replicas]
    if not (min(shares) > 0 and abs(fsum(shares) - 1) <= SHARE_TOLERANCE):  # NaN is neither
        raise InvalidStrategy(
            f"the replicas' shares add up to {fsum(shares):.6g}, the least is {min(shares):.6g}: "
            "they must be positive and add up to 1.",
            thing="replicas",
            value=shares[:16],
        )


def _check_groups(strategy: Strategy, domain: Domain) -> None:
    seen: dict[int, tuple[Synchronizer, tuple[str, bool], str]] = {}
    one_bucket = strategy.schedule.order == "ddp"  # which torch itself takes apart
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        for shard in choice.shards:
            if shard.group < 0:
                raise variable_refusal(variable, "group", shard.group, f"has group {shard.group}")
            values = (variable.dtype, variable.sparse and not one_bucket)
            other, others, first = seen.setdefault(shard.group, (shard, values, choice.variable))
            if other != shard or others != values:
                raise variable_refusal(
                    variable,
                    "group",
                    shard.group,
                    f"shares group {shard.group} with {first!r}, but differs from it in method, "
                    "server, option, type or sparsity",
                    "Members of a group travel in one message.",
                )


def _check_schedule(strategy: Strategy, domain: Domain) -> None:
    schedule = strategy.schedule
    if schedule.order == "explicit" and sorted(schedule.positions) != list(range(strategy.shards)):
        raise InvalidStrategy(
            f"schedule.positions must hold each of 0 to {strategy.shards - 1} once.",
            thing="schedule.positions",
            value=schedule.positions[:16],
        )
    if schedule.order != "ddp":  # whose size is that of buckets: it cuts nothing
        check_slices(schedule.slice_bytes, domain)
    if schedule.gather == "when_idle" and not schedule.overlap_forward:
        raise InvalidStrategy(
            "schedule.gather is 'when_idle', but schedule.overlap_forward is false: step() waits "
            "for all-gathers whenever they leave.",
            thing="schedule.gather",
            value=schedule.gather,
            remedy="Let messages continue during the next forward pass, or leave gather out.",
        )
    if schedule.order == "ddp":
        check_ddp(strategy, domain)
    if strategy.engine is not None:
        check_fully_shard(strategy, strategy.engine, domain)


MOST_SLICES = 4_000_000
"""Of a strategy: its plan takes about 250 bytes of memory for each. A trillion parameters of four
bytes in slices of 1 MiB are as many."""


def check_slices(slice_bytes: int, domain: Domain) -> None:
    """Raises InvalidStrategy where slices of that size would be too many; 0 never cuts."""
    total_bytes = domain.graph.size_bytes
    if slice_bytes and total_bytes // slice_bytes > MOST_SLICES:
        raise InvalidStrategy(
            f"slices of {slice_bytes} bytes would cut the {total_bytes:,} bytes of "
            f"{domain.graph.name!r} into more than {MOST_SLICES:,} messages.",
            thing="schedule.slice_bytes",
            value=slice_bytes,
            remedy=f"Give {total_bytes // MOST_SLICES + 1} bytes or more; 1 MiB is small.",
        )


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
    """A communication hook packs every bucket alike; PowerSGD's skips all but matrices."""
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
    scalar = next((each for each in domain.graph.variables if not each.shape), None)
    if scalar is not None:
        raise variable_refusal(
            scalar,
            "shape",
            scalar.shape,
            "has no dimension that fully_shard could cut",
            "Give it the shape (1,), or choose another strategy.",
        )
    small = next((each for each in domain.graph.variables if ITEM_BYTES[each.dtype] <= 2), None)
    if engine.param_dtype and small is not None:
        why = f"is {small.dtype} already, so param_dtype {engine.param_dtype!r} saves nothing"
        raise variable_refusal(
            small, "engine.param_dtype", engine.param_dtype, why, "Leave param_dtype out."
        )
    group_of: dict[int, int] = {}
    encoding = getattr(strategy.choices[0].shards[0], "encoding", EXACT)
    for variable, choice in zip(domain.graph.variables, strategy.choices, strict=True):
        shard, unit = choice.shards[0], engine.unit_of(variable.name)
        if len(choice.shards) > 1 or replace(shard, group=0) != ReduceScatter(0, True, encoding):
            why = (
                "is not a whole reduce-scatter with sharded update, packed as all others are, "
                "as fully_shard has it"
            )
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
