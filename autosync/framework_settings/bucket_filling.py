"""How torch's DistributedDataParallel fills its buckets, and which limits make it fill given ones.

After its first iteration DDP rebuilds buckets in the order in which gradients really got ready. A
bucket closes once it holds its limit; each type of gradients has its own buckets, and a sparse
gradient one for itself (torch's `compute_bucket_assignment_by_size`).
"""

from collections.abc import Sequence

from autosync.graph import ModelGraph

Bucket = tuple[int, ...]
"""Variables by index, in the order in which their gradients get ready."""


def ddp_buckets(graph: ModelGraph, limits_bytes: Sequence[int]) -> tuple[Bucket, ...]:
    """The buckets in the order in which they close.

    limits_bytes: of the first, the second, ... bucket of each type; the last one holds for all
        that follow.
    """
    buckets: list[Bucket] = []
    filling: dict[str, list[int]] = {}
    filled_bytes: dict[str, int] = {}
    closed: dict[str, int] = {}
    for index in graph.gradient_order:
        variable = graph.variables[index]
        if variable.sparse:
            buckets.append((index,))
            continue
        filling.setdefault(variable.dtype, []).append(index)
        filled = filled_bytes.get(variable.dtype, 0) + variable.size_bytes
        filled_bytes[variable.dtype] = filled
        count = closed.get(variable.dtype, 0)
        limit = limits_bytes[min(count, len(limits_bytes) - 1)]
        if filled >= limit:
            buckets.append(tuple(filling.pop(variable.dtype)))
            closed[variable.dtype] = count + 1
            filled_bytes[variable.dtype] = 0
    return (*buckets, *(tuple(bucket) for bucket in filling.values()))


def limits_that_fill(graph: ModelGraph, buckets: Sequence[Bucket]) -> tuple[int, ...] | None:
    """Limits in bytes under which DDP fills these buckets of dense gradients, one where one will
    do; None where no limits would."""
    by_type: dict[str, list[Bucket]] = {}
    for bucket in buckets:
        by_type.setdefault(graph.variables[bucket[0]].dtype, []).append(bucket)
    for dtype, of_type in by_type.items():
        if [index for bucket in of_type for index in bucket] != _ready(graph, dtype):
            return None
    places = [
        _common([_bounds(graph, of_type, place) for of_type in by_type.values()])
        for place in range(max(map(len, by_type.values()), default=0))
    ]
    one = _common(places)
    chosen = [one] if one[0] < one[1] else places
    if any(above >= most for above, most in chosen):
        return None
    largest = sum(variable.size_bytes for variable in graph.variables)
    return tuple(int(min(most, largest)) for _, most in chosen)


Bounds = tuple[float, float]
"""A limit lies above the first and is at most the second."""


def _bounds(graph: ModelGraph, of_type: Sequence[Bucket], place: int) -> Bounds:
    """Of the limit of one bucket: it must not close before its last gradient, and must then,
    unless nothing follows."""
    if place >= len(of_type):
        return 0, float("inf")
    sizes = [graph.variables[index].size_bytes for index in of_type[place]]
    last = place == len(of_type) - 1
    return sum(sizes[:-1]), float("inf") if last else sum(sizes)


def _common(bounds: Sequence[Bounds]) -> Bounds:
    return max((b[0] for b in bounds), default=0), min((b[1] for b in bounds), default=float("inf"))


def _ready(graph: ModelGraph, dtype: str) -> list[int]:
    """Dense gradients of a type, in the order in which they get ready."""
    variables = graph.variables
    return [
        index
        for index in graph.gradient_order
        if variables[index].dtype == dtype and not variables[index].sparse
    ]
