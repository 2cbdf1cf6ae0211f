"""The table of designs, and those of them that fit a domain and a space."""

from dataclasses import replace
from functools import lru_cache, partial

from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy, NotSupported
from autosync.population import encode
from autosync.search.designs import (
    bucket_sizes,
    list_schedule,
    pace,
    published_methods,
    torch_engines,
)
from autosync.search.designs import known_designs as known
from autosync.search.designs.building_blocks import Design, ordered
from autosync.search.domain_facts import replica_layouts
from autosync.search.extension_proposals import (
    Stop,
    fitting_forms,
    no_stop,
    proposer_of,
    proposers,
)
from autosync.search.space import Space
from autosync.simulator.memory.peak_memory import device_memory_bytes, memory_of
from autosync.strategy import EXACT, Encoding, Strategy
from autosync.verification import verify
from autosync.verification.shard_checks import SHARE_TOLERANCE

_HAND_DESIGNED: tuple[Design, ...] = (
    known.ddp,
    known.all_reduce_per_variable,
    known.all_reduce_one_bucket,
    known.all_reduce_5mb,
    known.all_reduce_25mb,
    known.all_reduce_chunk128,
    published_methods.mg_wfbp,
    published_methods.horovod,
    pace.pace,
    pace.pace_unfused,
    pace.pace_hierarchical,
    pace.pace_factors,
    list_schedule.list_schedule,
    list_schedule.hierarchical_list_schedule,
    known.tree_all_reduce,
    known.priority_sliced,
    known.reduce_scatter_25mb,
    known.dear,
    known.dear_sliced,
    known.dear_idle,
    known.zero1,
    known.zero1_overlap,
    known.ps_one_server,
    known.ps_load_balanced,
    known.ps_partitioned,
    known.ps_uneven_partitioned,
    known.ps_bandwidth_weighted,
    known.ps_least_busy_link,
    known.ps_pieces_4mb_priority,
    known.byteps,
    known.byteps_least_busy_link,
    known.hierarchical_ps,
    known.hierarchical_all_reduce,
    known.hierarchical_sliced,
    known.parallax,
    known.poseidon,
    known.factors_all_reduce,
    known.factors_dear,
    known.partitioned_all_reduce,
    known.random_axis_partition_ar,
)
DESIGNS: dict[str, Design] = {design.__name__: design for design in _HAND_DESIGNED}
"""All hand-designed strategies by their names, DDP first. What each does, its docstring says."""

_BY_TORCH: tuple[Design, ...] = (
    torch_engines.fsdp2,
    torch_engines.zero2,
    torch_engines.hsdp,
    torch_engines.hsdp_zero2,
    torch_engines.ddp_bf16,
    torch_engines.ddp_fp16,
    torch_engines.ddp_powersgd,
)
TORCH_DESIGNS: dict[str, Design] = {design.__name__: design for design in _BY_TORCH}
"""What torch itself runs, beside DDP as it comes."""

UNEVEN = ("all_reduce_25mb", "priority_sliced", "dear", "ps_bandwidth_weighted")
"""Those also tried with proportional shares, where the space allows them."""


def hand_designed(domain: Domain, space: Space) -> list[tuple[str, Strategy]]:
    """Those that run on this domain and lie in the space, pins applied; DDP always, first."""
    if space.only == "buckets":
        rungs = [each.strategy for each in bucket_sizes.ladder(domain)]
        return [(each.name or "ddp", each) for each in sorted(rungs, key=lambda each: each.name)]
    found = [("ddp", known.ddp(domain))]
    for name, build in DESIGNS.items():
        if name == "ddp":
            continue
        strategy = fitted(domain, space, build)
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


def own_ddp(domain: Domain, space: Space) -> Strategy:
    """torch's DDP with its own bucket sizes, as the space compares others with it."""
    return (bucket_sizes.fair_ddp if space.only == "buckets" else known.ddp)(domain)


def torch_designs(domain: Domain, space: Space) -> list[tuple[str, Strategy]]:
    """Those that run on this domain and lie in the space; PowerSGD of the ranks that it allows."""
    if space.only == "buckets":
        return []
    designs = dict(TORCH_DESIGNS)
    for encoding in space.encodings:
        if encoding.name == "powersgd" and encoding.rank != torch_engines.POWERSGD_RANK:
            hooked = partial(torch_engines.ddp_hooked, encoding=encoding)
            designs[f"ddp_powersgd_{encoding.rank}"] = hooked
    built = {name: fitted(domain, space, build) for name, build in designs.items()}
    return [(name, strategy) for name, strategy in built.items() if strategy is not None]


def fitted(domain: Domain, space: Space, build: Design) -> Strategy | None:
    """What is built, pins applied; None where it does not run on the domain (no node has several
    ranks, say) or does not lie in the space."""
    try:
        strategy = with_pins(build(domain), space)
        verify(strategy, domain, allow_lossy=space.may_lose, allow_inexact=space.may_lag)
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


def keeps_pins(strategy: Strategy, space: Space) -> bool:
    """Whether pinned variables have their pinned choices, in messages of their own."""
    return with_pins(strategy, space).canonical().choices == strategy.canonical().choices


def lies_in(strategy: Strategy, space: Space) -> bool:
    """Whether every unpinned choice, the schedule and the replicas' shares are ones that the space
    allows."""
    schedule = strategy.schedule
    if space.only == "buckets":
        exact = not (strategy.extensions or _encodings(strategy, set()))
        return exact and schedule.order == "ddp" and schedule.ddp is not None
    shares = [replica.share for replica in strategy.replicas]
    if max(shares) - min(shares) > SHARE_TOLERANCE and not space.uneven_shares:
        return False
    if space.only == "fsdp2" and strategy.engine is None:
        return False
    if not all(proposer_of(each.key).lies_in(strategy, space) for each in strategy.extensions):
        return False
    if strategy.engine is not None and not space.sharded_parameters:
        return False
    computed = strategy.engine.param_dtype if strategy.engine is not None else ""
    if computed and Encoding(computed) not in space.encodings:
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


@lru_cache(maxsize=2)
def named_designs(domain: Domain, space: Space) -> tuple[tuple[str, Strategy], ...]:
    """All designs by their names, and what extensions make of those that do not fit. Every round
    asks for them, and they stay the same where trials correct no costs."""
    named = [*hand_designed(domain, space), *torch_designs(domain, space)]
    return (*named, *fitting_forms(domain, named, space))


def check_any_fits(domain: Domain, space: Space, stop: Stop = no_stop) -> None:
    """stop: ends what extensions look for where no design fits.

    Raises:
        InvalidInput: nothing fits; says which strategy needs least, how much that is, and what
            would make it fit.
    """
    from autosync.simulator.memory.memory_check import check_memory, fitting_rows  # loads numba
    from autosync.simulator.numba_compiler import compile_plans_fast

    devices = device_memory_bytes(domain)
    memory = memory_of(domain)
    if memory.most_bytes(1.0) <= devices.min():
        return
    named = named_designs(domain, space)
    population = encode([strategy for _, strategy in named], domain)
    if len(fitting_rows(domain, population)):
        return
    if any(each.can_fit(domain, space, stop) for each in proposers()):
        return
    plans = compile_plans_fast(population, domain)
    excess = (memory.peak_bytes(plans, population) / devices).max(axis=1)
    name, strategy = named[int(excess.argmin())]
    try:
        check_memory(strategy, domain)
    except InvalidStrategy as error:
        raise InvalidInput(
            f"none of {len(named)} designed strategies fits the devices of cluster "
            f"{domain.cluster.name!r} (predicted). "
            f"{name} needs least: {error.message}",
            thing="memory",
            value=error.value,
            remedy=error.remedy,
        ) from None
