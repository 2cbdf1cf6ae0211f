"""Settings of torch's DistributedDataParallel: limits of its buckets and a communication hook.

After its first iteration DDP rebuilds its buckets in the order in which gradients got ready. A
bucket closes once it holds its limit; gradients of each type have buckets of their own, and a
sparse gradient has one for itself (torch's `compute_bucket_assignment_by_size`).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autosync.domain import Domain
from autosync.exports.settings import (
    TITLES,
    FrameworkName,
    FrameworkSettings,
    GradientMessage,
    all_reduced_messages,
    check_variables,
    one_encoding,
    refused,
    schedule_deviations,
    sparse_variables,
)
from autosync.graph import ModelGraph
from autosync.strategy import AllReduce, Encoding, Strategy
from autosync.torch_engine import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.units import MIB

Bucket = tuple[int, ...]
"""Variables by index, in the order in which their gradients get ready."""

Bounds = tuple[float, float]
"""A limit lies above the first and is at most the second."""

POWERSGD_START = 2
"""The earliest iteration: torch begins only after the buckets were rebuilt."""
HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
POWERSGD_MODULE = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
POWERSGD_DEVIATION = (
    "torch's PowerSGD begins in iteration {start}, approximates each parameter of a bucket by "
    "itself, and leaves uncompressed what would not shrink."
)


def ddp_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """Arguments of DistributedDataParallel, for the torch that AutoSync is built for (2.13).

    Raises:
        InvalidStrategy, NotSupported: DDP cannot run it; names the variable and why.
    """
    settings, encoding, deviations = ddp_wrapping(strategy, domain, "ddp")
    if (batches := domain.accumulate) > 1:
        deviations.append(
            f"{TITLES['ddp']} reduces the gradients of each of the {batches} batches of an update, "
            "the strategy their sum, once: run all but the last within model.no_sync()."
        )
    return FrameworkSettings(
        framework="ddp",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings={"DistributedDataParallel": settings, "comm_hook": _hook_data(encoding)},
        environment={},
        snippet=_snippet(settings, encoding),
    )


def ddp_wrapping(
    strategy: Strategy, domain: Domain, framework: FrameworkName
) -> tuple[dict[str, Any], Encoding, list[str]]:
    """Arguments of DistributedDataParallel, how messages are packed, and deviations. framework: who
    wraps the model in DDP.

    Raises:
        InvalidStrategy, NotSupported: as `ddp_settings`.
    """
    check_variables(strategy, domain)
    if strategy.schedule.order == "ddp":
        limits, deviations, encoding = _own_limits(strategy), [], _hook_encoding(strategy)
    else:
        messages = all_reduced_messages(_packed_alike(strategy, domain), domain, framework)
        encoding = one_encoding(messages, framework, powersgd=True)
        deviations = schedule_deviations(strategy, messages, framework)
        limits = _limits(messages, domain, framework)
    if encoding.name != "none" and (sparse := sparse_variables(domain)):
        raise refused(
            framework,
            f"the gradient of {sparse[0].name!r} is sparse, which its hooks cannot pack",
            thing=f"variable {sparse[0].name}",
            value=encoding.name,
        )
    if encoding.name == "powersgd":
        deviations.append(POWERSGD_DEVIATION.format(start=POWERSGD_START))
    return _arguments(limits), encoding, deviations


def _own_limits(strategy: Strategy) -> tuple[int, ...]:
    """Of a strategy that is DDP itself; 0 stands for torch's default, as in a plan."""
    bucket_bytes, arguments = strategy.schedule.slice_bytes, strategy.schedule.ddp
    if arguments is not None and arguments.bucket_limits_bytes:
        return arguments.bucket_limits_bytes
    return () if bucket_bytes in (0, DDP_BUCKET_BYTES) else (bucket_bytes,)


def _packed_alike(strategy: Strategy, domain: Domain) -> Strategy:
    """Where matrices travel by PowerSGD, vectors are marked so, too: torch's hook takes both in a
    bucket and leaves vectors as they are."""
    used = {
        shard.encoding
        for choice in strategy.choices
        for shard in choice.shards
        if isinstance(shard, AllReduce) and shard.encoding.name == "powersgd"
    }
    if len(used) != 1:
        return strategy
    (encoding,) = used
    choices = []
    for choice, variable in zip(strategy.choices, domain.graph.variables, strict=False):
        shards = tuple(
            replace(shard, encoding=encoding)
            if isinstance(shard, AllReduce) and len(variable.shape) < 2
            else shard
            for shard in choice.shards
        )
        choices.append(replace(choice, shards=shards))
    return replace(strategy, choices=(*choices, *strategy.choices[len(choices) :]))


def _limits(
    messages: list[GradientMessage], domain: Domain, framework: FrameworkName
) -> tuple[int, ...]:
    """In bytes; empty where torch's defaults do.

    Raises:
        NotSupported: no limits make DDP fill buckets with just these gradients.
    """
    variables = domain.graph.variables
    dense = [m.variables for m in messages if not variables[m.variables[0]].sparse]
    wanted = set(dense) | {(i,) for i, variable in enumerate(variables) if variable.sparse}
    if set(ddp_buckets(domain.graph, (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES))) == wanted:
        return ()
    limits = limits_that_fill(domain.graph, dense)
    if limits is None:
        named, other = _apart(dense, domain)
        raise refused(
            framework,
            f"the gradients of {named!r} and {other!r} travel together, and others get ready "
            "between them: a bucket holds what gets ready one after the other",
            thing=f"variable {named}",
            value=other,
        )
    return limits


def _apart(dense: list[tuple[int, ...]], domain: Domain) -> tuple[str, str]:
    """Two neighbours of a message between which other gradients get ready."""
    graph = domain.graph
    place = {index: at for at, index in enumerate(graph.gradient_order)}
    for message in dense:
        for first, second in itertools.pairwise(message):
            if place[second] != place[first] + 1:
                return graph.variables[first].name, graph.variables[second].name
    names = [graph.variables[message[0]].name for message in dense[:2]]
    return names[0], names[-1]


def _hook_encoding(strategy: Strategy) -> Encoding:
    """Of the communication hook of a strategy that is DDP itself."""
    shards = (shard for choice in strategy.choices for shard in choice.shards)
    packed = (shard.encoding for shard in shards if isinstance(shard, AllReduce))
    return next((each for each in packed if each.name != "none"), Encoding())


def own_arguments(strategy: Strategy) -> dict[str, Any]:
    """Arguments of DistributedDataParallel of a strategy that is DDP itself."""
    return _arguments(_own_limits(strategy))


def _arguments(limits_bytes: tuple[int, ...]) -> dict[str, Any]:
    return _bucket_arguments(limits_bytes) | {"gradient_as_bucket_view": True}


def ddp_call(settings: Mapping[str, Any]) -> str:
    """The Python that wraps `model` with these arguments."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"DistributedDataParallel(model, {arguments})"


def _bucket_arguments(limits_bytes: tuple[int, ...]) -> dict[str, Any]:
    mebibytes = [_in_mebibytes(limit) for limit in limits_bytes]
    if len(mebibytes) > 1:
        return {"bucket_cap_mb_list": mebibytes}
    return {"bucket_cap_mb": mebibytes[0]} if mebibytes else {}


def _in_mebibytes(limit_bytes: int) -> float:
    """The number with fewest digits that torch takes for this limit, which it cuts to bytes."""
    whole, rest = divmod(limit_bytes, MIB)
    if not rest:
        return whole
    short = round(limit_bytes / MIB, 3)
    return short if int(short * MIB) == limit_bytes else limit_bytes / MIB


def _hook_data(encoding: Encoding) -> dict[str, Any] | None:
    if encoding.name == "none":
        return None
    if encoding.name == "powersgd":
        state = {
            "matrix_approximation_rank": encoding.rank,
            "start_powerSGD_iter": POWERSGD_START,
        }
        return {"hook": f"{POWERSGD_MODULE}.powerSGD_hook", "PowerSGDState": state}
    return {"hook": f"{HOOKS}.{encoding.name}_compress_hook"}


def _snippet(settings: dict[str, Any], encoding: Encoding) -> str:
    lines = [
        "from torch.nn.parallel import DistributedDataParallel",
        "",
        f"model = {ddp_call(settings)}",
    ]
    if encoding.name == "powersgd":
        lines[1:1] = [f"from {POWERSGD_MODULE} import PowerSGDState, powerSGD_hook"]
        state = (
            f"PowerSGDState(None, matrix_approximation_rank={encoding.rank}, "
            f"start_powerSGD_iter={POWERSGD_START})"
        )
        lines += [f"model.register_comm_hook({state}, powerSGD_hook)"]
    elif encoding.name != "none":
        lines[1:1] = [f"from {HOOKS} import {encoding.name}_compress_hook"]
        lines += [f"model.register_comm_hook(None, {encoding.name}_compress_hook)"]
    return "\n".join([*lines, ""])


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
    bounds = bounds_that_fill(graph, buckets)
    if bounds is None:
        return None
    largest = sum(variable.size_bytes for variable in graph.variables)
    return tuple(int(min(most, largest)) for _, most in bounds)


def bounds_that_fill(graph: ModelGraph, buckets: Sequence[Bucket]) -> list[Bounds] | None:
    """Of the limits under which DDP fills these buckets of dense gradients, one where one will do;
    None where no limits would."""
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
    return None if any(above >= most for above, most in chosen) else chosen


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
