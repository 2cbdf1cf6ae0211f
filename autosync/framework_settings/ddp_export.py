"""Settings of torch's DistributedDataParallel: limits of its buckets and a communication hook."""

import itertools
from dataclasses import replace
from typing import Any

from autosync.domain import Domain
from autosync.framework_settings.bucket_filling import ddp_buckets, limits_that_fill
from autosync.framework_settings.exported_settings import FrameworkSettings, refused
from autosync.framework_settings.gradient_messages import (
    GradientMessage,
    all_reduced_messages,
    check_variables,
    one_encoding,
    schedule_deviations,
    sparse_variables,
)
from autosync.plan.plan_document import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.strategy import AllReduce, Encoding, Strategy
from autosync.units import MIB

POWERSGD_START = 2
"""The earliest iteration: torch begins only after the buckets were rebuilt."""
HALVES = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
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
    check_variables(strategy, domain)
    if strategy.schedule.order == "ddp":
        limits, deviations, encoding = _own_limits(strategy), [], Encoding()
    else:
        messages = all_reduced_messages(_packed_alike(strategy, domain), domain, "ddp")
        encoding = one_encoding(messages, "ddp")
        deviations = schedule_deviations(strategy, messages, "ddp")
        limits = _limits(messages, domain)
    if encoding.name != "none" and (sparse := sparse_variables(domain)):
        raise refused(
            "ddp",
            f"the gradient of {sparse[0].name!r} is sparse, which its hooks cannot pack",
            thing=f"variable {sparse[0].name}",
            value=encoding.name,
        )
    if encoding.name == "powersgd":
        deviations.append(POWERSGD_DEVIATION.format(start=POWERSGD_START))
    settings: dict[str, Any] = _bucket_arguments(limits) | {"gradient_as_bucket_view": True}
    return FrameworkSettings(
        framework="ddp",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings={"DistributedDataParallel": settings, "comm_hook": _hook_data(encoding)},
        environment={},
        snippet=_snippet(settings, encoding),
    )


def _own_limits(strategy: Strategy) -> tuple[int, ...]:
    """Of a strategy that is DDP itself; 0 stands for torch's default, as in a plan."""
    bucket_bytes = strategy.schedule.slice_bytes
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


def _limits(messages: list[GradientMessage], domain: Domain) -> tuple[int, ...]:
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
            "ddp",
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


def _bucket_arguments(limits_bytes: tuple[int, ...]) -> dict[str, Any]:
    mebibytes = [limit / MIB for limit in limits_bytes]
    if len(mebibytes) > 1:
        return {"bucket_cap_mb_list": mebibytes}
    return {"bucket_cap_mb": mebibytes[0]} if mebibytes else {}


def _hook_data(encoding: Encoding) -> dict[str, Any] | None:
    if encoding.name == "none":
        return None
    if encoding.name == "powersgd":
        state = {
            "matrix_approximation_rank": encoding.rank,
            "start_powerSGD_iter": POWERSGD_START,
        }
        return {"hook": f"{POWERSGD_MODULE}.powerSGD_hook", "PowerSGDState": state}
    return {"hook": f"{HALVES}.{encoding.name}_compress_hook"}


def _snippet(settings: dict[str, Any], encoding: Encoding) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    lines = [
        "from torch.nn.parallel import DistributedDataParallel",
        "",
        f"model = DistributedDataParallel(model, {arguments})",
    ]
    if encoding.name == "powersgd":
        lines[1:1] = [f"from {POWERSGD_MODULE} import PowerSGDState, powerSGD_hook"]
        state = (
            f"PowerSGDState(None, matrix_approximation_rank={encoding.rank}, "
            f"start_powerSGD_iter={POWERSGD_START})"
        )
        lines += [f"model.register_comm_hook({state}, powerSGD_hook)"]
    elif encoding.name != "none":
        lines[1:1] = [f"from {HALVES} import {encoding.name}_compress_hook"]
        lines += [f"model.register_comm_hook(None, {encoding.name}_compress_hook)"]
    return "\n".join([*lines, ""])
