"""A strategy in one line of words, for tables."""

from collections.abc import Iterable

from autosync.plan.document import DDP_BUCKET_BYTES
from autosync.strategy import (
    AllGather,
    AllReduce,
    Factors,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
)

METHODS: tuple[tuple[type[Synchronizer], str], ...] = (
    (AllReduce, "all-reduce"),
    (ReduceScatter, "reduce-scatter + all-gather"),
    (ParameterServer, "parameter server"),
    (AllGather, "sparse all-gather"),
    (Factors, "sufficient factors"),
)


def describe(strategy: Strategy) -> str:
    """What it does with how many shards, how variables are cut, and when messages are sent."""
    schedule = strategy.schedule
    if schedule.order == "ddp":
        bucket = schedule.slice_bytes or DDP_BUCKET_BYTES
        return f"torch's DDP, {_size(bucket)} buckets"
    parts = [*_methods(strategy), *_cut(strategy), *_schedule(schedule)]
    shares = {round(replica.share, 6) for replica in strategy.replicas}
    if len(shares) > 1:
        parts.append(f"uneven shares ({min(shares):.0%} to {max(shares):.0%})")
    if strategy.staleness:
        parts.append(f"{strategy.staleness} stale iterations")
    return ", ".join(parts)


def _methods(strategy: Strategy) -> Iterable[str]:
    shards = [shard for choice in strategy.choices for shard in choice.shards]
    for kind, name in METHODS:
        if mine := [shard for shard in shards if isinstance(shard, kind)]:
            count = "" if len(mine) == len(shards) else f" of {_plural(len(mine), 'shard')}"
            yield f"{name}{count} {_where(mine)}{_extras(mine)}"


def _where(shards: list[Synchronizer]) -> str:
    groups = _plural(len({shard.group for shard in shards}), "message")
    owners = {shard.server for shard in shards if isinstance(shard, ParameterServer)}
    return f"in {groups} on {_plural(len(owners), 'server')}" if owners else f"in {groups}"


def _extras(shards: list[Synchronizer]) -> str:
    found: dict[str, None] = {}
    for shard in shards:
        if isinstance(shard, AllReduce) and (shard.algorithm != "ring" or shard.device_order):
            found["own ring" if shard.device_order else shard.algorithm] = None
        if isinstance(shard, ParameterServer) and shard.hierarchical:
            found["hierarchical"] = None
        if isinstance(shard, ReduceScatter) and shard.sharded_update:
            found["sharded update"] = None
        if not isinstance(shard, AllGather | Factors) and shard.encoding.name != "none":
            found[shard.encoding.name] = None
    return f" ({', '.join(found)})" if found else ""


def _cut(strategy: Strategy) -> Iterable[str]:
    cut = [choice for choice in strategy.choices if len(choice.shards) > 1]
    if cut:
        shards = sum(len(choice.shards) for choice in cut)
        yield f"{_plural(len(cut), 'variable')} cut into {shards} shards"


def _schedule(schedule: Schedule) -> Iterable[str]:
    if schedule.order != "fifo":
        yield {"priority": "urgent first", "explicit": "explicit order"}[schedule.order]
    if schedule.slice_bytes:
        yield f"{_size(schedule.slice_bytes)} slices"
    if schedule.overlap_forward:
        yield "overlapping forward"


def _size(size_bytes: int) -> str:
    mib = size_bytes / 2**20
    return f"{mib:.3g} MiB" if mib >= 1 else f"{size_bytes / 2**10:.3g} KiB"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
