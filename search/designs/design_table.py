"""The table of hand-designed strategies, and those of them that fit a domain and a space."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.search.designs import known_designs, pace
from autosync.search.designs.explicit_order import ordered
from autosync.search.designs.horovod import horovod_strategy
from autosync.search.designs.list_schedule import hierarchical_list_schedule, list_schedule
from autosync.search.designs.mg_wfbp import mg_wfbp_strategy
from autosync.search.designs.server_placement import (
    byteps_least_busy_link,
    ps_least_busy_link,
)
from autosync.search.domain_facts import replica_layouts
from autosync.search.extension_proposals import proposer_of, proposers
from autosync.search.space import Space
from autosync.strategy import EXACT, Encoding, Strategy
from autosync.verification import verify


class Builder(NamedTuple):
    build: Callable[[Domain], Strategy]
    sentence: str


BUILDERS: dict[str, Builder] = {
    "ddp": Builder(known_designs.ddp, "Keep torch's DistributedDataParallel and its own buckets."),
    "all_reduce_per_variable": Builder(
        known_designs.all_reduce_per_variable, "One all-reduce a variable, as gradients get ready."
    ),
    "all_reduce_one_bucket": Builder(
        known_designs.all_reduce_one_bucket, "One all-reduce of everything, after backward."
    ),
    "all_reduce_5mb": Builder(known_designs.all_reduce_5mb, "All-reduce in groups of 5 MiB."),
    "all_reduce_25mb": Builder(known_designs.all_reduce_25mb, "All-reduce in groups of 25 MiB."),
    "all_reduce_chunk128": Builder(
        known_designs.all_reduce_chunk128,
        "All-reduce in groups of 128 variables (AutoDist's AllReduce).",
    ),
    "mg_wfbp": Builder(
        mg_wfbp_strategy,
        "All-reduces, merged with the next while the wait is shorter than a startup (MG-WFBP).",
    ),
    "horovod": Builder(
        horovod_strategy,
        "All-reduces of what is ready when a cycle of 5 ms begins, up to 64 MiB (Horovod).",
    ),
    "pace": Builder(
        pace.pace_strategy,
        "All-reduces fused by PACE's max-min program, interrupted where that ends soonest.",
    ),
    "pace_unfused": Builder(
        pace.pace_unfused,
        "One all-reduce an operation, interrupted by those with a longer tail (PACE's schedule).",
    ),
    "pace_hierarchical": Builder(pace.pace_hierarchical, "PACE over hierarchical all-reduces."),
    "pace_factors": Builder(
        pace.pace_factors, "Factors where they are fewer bytes, else PACE, in one schedule."
    ),
    "list_schedule": Builder(
        list_schedule,
        "All-reduces of about 4 MiB, of those ready the highest upward rank first (HeteroG).",
    ),
    "hierarchical_list_schedule": Builder(
        hierarchical_list_schedule, "The same over hierarchical all-reduces."
    ),
    "tree_all_reduce": Builder(
        known_designs.tree_all_reduce, "Tree all-reduce in groups of 25 MiB."
    ),
    "priority_sliced": Builder(
        known_designs.priority_sliced,
        "All-reduce cut into 4 MiB slices, nearest next use first, into the next forward.",
    ),
    "reduce_scatter_25mb": Builder(
        known_designs.reduce_scatter_25mb,
        "Reduce-scatter and all-gather in groups of 25 MiB, in backward.",
    ),
    "dear": Builder(
        known_designs.dear,
        "Reduce-scatter in backward, all-gather into the next forward, 25 MiB (DeAR).",
    ),
    "dear_sliced": Builder(
        known_designs.dear_sliced, "DeAR in 4 MiB slices, nearest next use first."
    ),
    "dear_idle": Builder(
        known_designs.dear_idle,
        "The same, but all-gathers leave while the wire is idle, in backward, too.",
    ),
    "zero1": Builder(
        known_designs.zero1,
        "Reduce-scatter, each replica updates its part, all-gather of values (ZeRO-1).",
    ),
    "zero1_overlap": Builder(
        known_designs.zero1_overlap,
        "ZeRO-1 whose all-gather runs into the next forward, nearest use first.",
    ),
    "ps_one_server": Builder(
        known_designs.ps_one_server, "Everything owned by the first rank (AutoDist's PS)."
    ),
    "ps_load_balanced": Builder(
        known_designs.ps_load_balanced,
        "Whole variables to the owner with the fewest bytes (PSLoadBalancing).",
    ),
    "ps_partitioned": Builder(
        known_designs.ps_partitioned,
        "Axis 0 cut by its smallest divisor, fewest bytes first (PartitionedPS).",
    ),
    "ps_uneven_partitioned": Builder(
        known_designs.ps_uneven_partitioned,
        "Axis 0 cut by its smallest non-divisor (UnevenPartitionedPS).",
    ),
    "ps_bandwidth_weighted": Builder(
        known_designs.ps_bandwidth_weighted,
        "4 MiB pieces owned in proportion to bandwidth, merged by owner.",
    ),
    "ps_least_busy_link": Builder(
        ps_least_busy_link,
        "4 MiB pieces, each to the owner that leaves the busiest link least busy, merged by owner.",
    ),
    "ps_pieces_4mb_priority": Builder(
        known_designs.ps_pieces_4mb_priority,
        "4 MiB pieces on balanced owners, nearest use first (ByteScheduler).",
    ),
    "byteps": Builder(
        known_designs.byteps, "The same, but owners return average gradients, at once (BytePS)."
    ),
    "byteps_least_busy_link": Builder(
        byteps_least_busy_link, "Owners as in ps_least_busy_link, gradients returned as by BytePS."
    ),
    "hierarchical_ps": Builder(
        known_designs.hierarchical_ps,
        "4 MiB pieces, summed inside each node before they travel to the owner.",
    ),
    "hierarchical_all_reduce": Builder(
        known_designs.hierarchical_all_reduce,
        "Reduce inside each node, all-reduce between nodes, 25 MiB.",
    ),
    "hierarchical_sliced": Builder(
        known_designs.hierarchical_sliced,
        "Hierarchical all-reduce in slices, nearest next use first.",
    ),
    "parallax": Builder(
        known_designs.parallax, "Sparse gradients to owners, dense ones all-reduced (Parallax)."
    ),
    "poseidon": Builder(
        known_designs.poseidon,
        "Factors where Poseidon's rule prefers them, else owners of 2 MiB pieces.",
    ),
    "factors_all_reduce": Builder(
        known_designs.factors_all_reduce,
        "Factors where they are fewer bytes, else sliced all-reduce.",
    ),
    "factors_dear": Builder(
        known_designs.factors_dear, "Factors where they are fewer bytes, else DeAR."
    ),
    "partitioned_all_reduce": Builder(
        known_designs.partitioned_all_reduce,
        "Axis 0 cut by its smallest divisor, all-reduced (PartitionedAR).",
    ),
    "random_axis_partition_ar": Builder(
        known_designs.random_axis_partition_ar,
        "A random axis cut, all-reduced (RandomAxisPartitionAR).",
    ),
}
"""All hand-designed strategies, DDP first."""

UNEVEN = ("all_reduce_25mb", "priority_sliced", "dear", "ps_bandwidth_weighted")
"""Those also tried with proportional shares, where the space allows them."""


def hand_designed(domain: Domain, space: Space) -> list[tuple[str, Strategy]]:
    """Those that run on this domain and lie in the space, pins applied; DDP always, first."""
    found = [("ddp", known_designs.ddp(domain))]
    for name, builder in BUILDERS.items():
        if name == "ddp":
            continue
        strategy = fitted(domain, space, builder.build)
        if strategy is None:
            continue
        found.append((name, strategy))
        if name in UNEVEN:
            found += [
                (f"{name}_proportional", replace(strategy, replicas=layout))
                for layout in replica_layouts(domain, space)[1:]
            ]
    for name, build in (each for one in proposers() for each in one.designs(space)):
        if (strategy := fitted(domain, space, build)) is not None:
            found.append((name, strategy))
    return found


def fitted(domain: Domain, space: Space, build: Callable[[Domain], Strategy]) -> Strategy | None:
    """What is built, pins applied; None where it does not run on the domain (no node has several
    ranks, say) or does not lie in the space."""
    try:
        strategy = with_pins(build(domain), space)
        lossy = any(each != EXACT for each in space.encodings)
        verify(strategy, domain, allow_lossy=lossy, allow_inexact=space.may_lag)
    except (InvalidStrategy, NotSupported):
        return None
    return strategy if lies_in(strategy, space) else None


def with_pins(strategy: Strategy, space: Space) -> Strategy:
    """The strategy with the pinned choices; pinned shards join no group but their own, and in an
    explicit order they take the place of their variable's first."""
    above = 1 + max(shard.group for choice in strategy.choices for shard in choice.shards)
    pins = {pin.variable: pin for pin in space.pins}
    choices = tuple(
        replace(
            pins[choice.variable],
            shards=tuple(
                replace(shard, group=shard.group + above) for shard in pins[choice.variable].shards
            ),
        )
        if choice.variable in pins
        else choice
        for choice in strategy.choices
    )
    pinned = replace(strategy, choices=choices)
    if strategy.schedule.order != "explicit" or not pins:
        return pinned
    positions = iter(strategy.schedule.positions)
    places = [[next(positions) for _ in choice.shards] for choice in strategy.choices]
    keys = [
        [min(own)] * len(choice.shards) if choice.variable in pins else own
        for own, choice in zip(places, choices, strict=True)
    ]
    return ordered(pinned, keys)


def lies_in(strategy: Strategy, space: Space) -> bool:
    """Whether every unpinned choice and the schedule are ones that the space allows."""
    schedule = strategy.schedule
    if not all(proposer_of(each.key).lies_in(strategy, space) for each in strategy.extensions):
        return False
    if strategy.engine is not None and not space.sharded_parameters:
        return False
    if schedule.overlap_forward and not space.overlap_forward:
        return False
    if schedule.order in ("priority", "explicit") and not space.priority:
        return False
    pinned = {pin.variable for pin in space.pins}
    if any(each not in space.encodings for each in _encodings(strategy, pinned)):
        return False
    kinds = {
        (shard.kind, getattr(shard, "hierarchical", getattr(shard, "algorithm", "")))
        for choice in strategy.choices
        if choice.variable not in pinned
        for shard in choice.shards
    }
    allowed = {
        "parameter_server": space.parameter_server,
        "all_reduce": space.all_reduce,
        "reduce_scatter": space.reduce_scatter,
        "all_gather": True,
        "factors": space.factors,
    }
    return all(
        allowed[kind] and (space.hierarchical or form not in (True, "hierarchical"))
        for kind, form in kinds
    )


def _encodings(strategy: Strategy, pinned: set[str]) -> set[Encoding]:
    """Of the messages of unpinned variables, but for what is sent as it is."""
    shards = (s for c in strategy.choices if c.variable not in pinned for s in c.shards)
    return {getattr(shard, "encoding", EXACT) for shard in shards} - {EXACT}
