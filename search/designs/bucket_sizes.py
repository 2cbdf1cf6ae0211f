"""torch's DDP with other sizes of its buckets: one size for all (`bucket_cap_mb`), or a list of
them (`bucket_cap_mb_list`)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from autosync.domain import Domain
from autosync.exports.ddp import Bounds, bounds_that_fill, ddp_buckets
from autosync.search.designs.known_designs import ddp_of_limits
from autosync.strategy import Schedule, Strategy
from autosync.torch_engine import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, DdpArguments
from autosync.units import MIB

VIEWS = DdpArguments(gradient_as_bucket_view=True)
LEAST_BYTES = 1024
"""No bucket size is smaller."""
SMALLEST_SHARE = 1 / 64
"""Of a small model's bytes, the smallest bucket size; of larger models it is 1 MiB, and all sizes
are whole MiB."""
STEP = 2 ** (1 / 4)
"""Between neighbouring sizes that may be tried: four lie between a size and its double."""


@dataclass(frozen=True, slots=True)
class SizedDdp:
    """DDP with one size for all buckets. size_bytes: DDP's own 25 MiB stands for its default,
    whose first bucket holds 1 MiB."""

    size_bytes: int
    strategy: Strategy


def fair_ddp(domain: Domain) -> Strategy:
    """torch's DDP with its own bucket sizes, whose gradients are views of the buckets."""
    return ddp_of_size(domain, DDP_BUCKET_BYTES)


def ddp_of_size(domain: Domain, size_bytes: int) -> Strategy:
    """DDP with one size for all buckets; at 25 MiB with its own sizes."""
    own = size_bytes == DDP_BUCKET_BYTES
    limits = (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES) if own else (size_bytes,)
    schedule = Schedule("ddp", slice_bytes=size_bytes, ddp=VIEWS)
    name = "" if own else f"ddp_{size_bytes / MIB:.4g}mb"
    return replace(ddp_of_limits(domain, limits, schedule), name=name)


def ddp_of_sizes(domain: Domain, limits_bytes: tuple[int, ...]) -> Strategy:
    """DDP with a size for each bucket; the last holds for all that follow."""
    arguments = replace(VIEWS, bucket_limits_bytes=limits_bytes)
    schedule = Schedule("ddp", slice_bytes=max(limits_bytes), ddp=arguments)
    strategy = ddp_of_limits(domain, limits_bytes, schedule)
    return replace(strategy, name=f"ddp_list_{strategy.id[:6]}")


@lru_cache(maxsize=4)
def ladder(domain: Domain) -> tuple[SizedDdp, ...]:
    """Sizes that double, from the smallest to one bucket for everything, the smallest first. Sizes
    that fill the same buckets are one; DDP's own sizes are among them."""
    return _distinct(domain, list(_sizes(domain, 2.0)))


@lru_cache(maxsize=4)
def all_sizes(domain: Domain) -> tuple[SizedDdp, ...]:
    """Those of the ladder, and sizes between them."""
    rungs = (each.size_bytes for each in ladder(domain))
    return _distinct(domain, [*rungs, *_sizes(domain, STEP)])


def _sizes(domain: Domain, factor: float) -> Iterator[int]:
    """Sizes that each are about `factor` times the one before: whole MiB, which is what torch's
    documentation has, or for a small model quarters of the smallest."""
    total = sum(variable.size_bytes for variable in domain.graph.variables)
    smallest = 2.0 ** math.floor(math.log2(max(LEAST_BYTES, total * SMALLEST_SHARE)))
    wanted = min(float(MIB), smallest)
    unit = MIB if wanted == MIB else int(wanted) // 4
    while True:
        yield round(wanted / unit) * unit
        if wanted >= total:
            return
        wanted *= factor


def _distinct(domain: Domain, sizes: Sequence[int]) -> tuple[SizedDdp, ...]:
    """By size. Of those with equal buckets the first stays, and DDP's own in any case."""
    own = SizedDdp(DDP_BUCKET_BYTES, fair_ddp(domain))
    found = {own.strategy.choices: own}
    for size in sizes:
        strategy = ddp_of_size(domain, size)
        found.setdefault(strategy.choices, SizedDdp(size, strategy))
    return tuple(sorted(found.values(), key=lambda each: each.size_bytes))


def neighbouring_lists(domain: Domain, limits_bytes: Sequence[int]) -> list[tuple[int, ...]]:
    """Lists of bucket sizes that fill other buckets than these do: one of these larger or smaller,
    divided in two, or joined with the next."""
    graph = domain.graph
    sizes = _filled(domain, limits_bytes)
    found: dict[tuple[int, ...], None] = {}
    for place, size in enumerate(sizes):
        before, behind = sizes[:place], sizes[place + 1 :]
        changed = [[round(size * factor)] for factor in (0.5, 0.75, 1.33, 2.0)]
        changed += [[size // 2, size - size // 2], [size // 4, size - size // 4]]
        options = [[*before, *each, *behind] for each in changed]
        if behind:
            options.append([*before, size + behind[0], *behind[1:]])
        for option in options:
            limits = shortest_limits(domain, [max(each, 1) for each in option])
            if limits is not None:
                found[limits] = None
    known = ddp_buckets(graph, limits_bytes)
    return [each for each in found if ddp_buckets(graph, each) != known]


def _filled(domain: Domain, limits_bytes: Sequence[int]) -> list[int]:
    """What the first, the second, ... bucket holds; of several types the largest."""
    variables = domain.graph.variables
    places: dict[str, int] = {}
    sizes: list[int] = []
    for bucket in ddp_buckets(domain.graph, limits_bytes):
        if variables[bucket[0]].sparse:
            continue
        dtype = variables[bucket[0]].dtype
        place = places[dtype] = places.get(dtype, -1) + 1
        held = sum(variables[index].size_bytes for index in bucket)
        if place == len(sizes):
            sizes.append(held)
        else:
            sizes[place] = max(sizes[place], held)
    return sizes


def shortest_limits(domain: Domain, limits_bytes: Sequence[int]) -> tuple[int, ...] | None:
    """Sizes of few digits in MiB that fill the same buckets, equal ones where they can be; None
    where one size would do, or none."""
    graph = domain.graph
    buckets = ddp_buckets(graph, limits_bytes)
    dense = [each for each in buckets if not graph.variables[each[0]].sparse]
    bounds = bounds_that_fill(graph, dense)
    if bounds is None or len(bounds) < 2:
        return None
    largest = sum(variable.size_bytes for variable in graph.variables)
    limits: tuple[int, ...] = ()
    for above, most in bounds:
        fits = bool(limits) and above < limits[-1] <= most
        limits = (*limits, limits[-1] if fits else _shortest((above, most), largest))
    while len(limits) > 2 and limits[-1] == limits[-2]:
        limits = limits[:-1]  # the last holds for all that follow
    return limits if ddp_buckets(graph, limits) == buckets else None


def _shortest(bounds: Bounds, largest: int) -> int:
    """Of the sizes above the first bound and up to the second."""
    above, most = bounds[0], min(bounds[1], largest)
    for digits in (1, 10, 100, 1000):
        size = math.floor(most / MIB * digits) / digits * MIB
        if above < size:
            return int(size)
    return int(most)
