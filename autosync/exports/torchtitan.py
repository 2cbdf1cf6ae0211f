"""Settings of torchtitan, `[parallelism]` of its configuration: FSDP2, HSDP or DDP.

It wraps every transformer block and the model itself, and leaves no choice of units or of DDP's
buckets.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.exports.fully_shard import HALF_TYPES
from autosync.exports.settings import (
    SYNCHRONIZER_WORDS,
    FrameworkSettings,
    check_variables,
    one_type,
    refused,
)
from autosync.strategy import EXACT, Strategy
from autosync.torch_engine import FullyShard, usual_units
from autosync.units import MIB

DDP_MEBIBYTES = 100
"""Of the buckets of torchtitan's DDP (`bucket_cap_mb=100`), which no setting changes."""
Table = dict[str, str | int]


def torchtitan_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """
    Raises:
        InvalidStrategy, NotSupported: torchtitan cannot run it; names the variable and why.
    """
    check_variables(strategy, domain)
    shards = [shard for choice in strategy.choices for shard in choice.shards]
    torch_runs = strategy.engine is not None or strategy.schedule.order == "ddp"
    packed = {getattr(shard, "encoding", EXACT) for shard in shards} - {EXACT}
    if torch_runs and packed:
        raise refused(
            "torchtitan",
            f"it has no setting that packs gradients as {next(iter(packed)).name}",
            thing="encoding",
            value=sorted(each.name for each in packed),
            nearest="the same with gradients as they are",
        )
    if strategy.engine is not None:
        parallelism, deviations = _sharded(strategy.engine, domain)
    elif strategy.schedule.order == "ddp":
        parallelism, deviations = _replicated(strategy, domain)
    else:
        kinds = sorted({shard.kind for shard in shards})
        raise refused(
            "torchtitan",
            f"its gradients are {SYNCHRONIZER_WORDS[kinds[0]]} by a plan of messages, and there "
            "torch's own FSDP2 or DDP synchronizes",
            thing="strategy",
            value=kinds,
            nearest="`fsdp2`, `zero2`, `hsdp` or `ddp` among the designs",
        )
    tables: dict[str, Table] = {"parallelism": parallelism}
    if strategy.engine is not None:
        dtype = one_type(domain, "torchtitan")
        if dtype not in ("float32", "bfloat16"):
            raise refused(
                "torchtitan",
                f"its parameters are of {dtype}, and there of bfloat16 or float32",
                thing="variables",
                value=dtype,
            )
        computed = HALF_TYPES.get(strategy.engine.param_dtype, dtype)
        tables["training"] = {
            "mixed_precision_param": computed,
            "mixed_precision_reduce": "float32",
        }
        if dtype != "float32":
            deviations.append(f"torchtitan reduces gradients of {dtype} as float32.")
    return FrameworkSettings(
        framework="torchtitan",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings=dict(tables),
        environment={},
        snippet="\n".join(_toml(name, table) for name, table in tables.items()),
    )


def _sharded(engine: FullyShard, domain: Domain) -> tuple[Table, list[str]]:
    if engine.smaller_groups:
        raise refused(
            "torchtitan",
            "some of its units reshard to a smaller group after forward, which is no setting there",
            thing="engine.reshard_after_forward",
            value=engine.smaller_groups,
            nearest="`fsdp2`, where all reshard to their whole group, or `--for fsdp2`",
        )
    if engine.param_dtype == "fp16":
        raise refused(
            "torchtitan",
            "its units compute in float16, and there that is bfloat16 or float32",
            thing="engine.param_dtype",
            value=engine.param_dtype,
            nearest="the same with bf16",
        )
    kept = {engine.keeps_values(unit) for unit in range(len(engine.units))}
    if len(kept) > 1:
        raise refused(
            "torchtitan",
            "some of its units keep their values and others do not, and there all are alike",
            thing="engine.reshard_after_forward",
            value=sorted(kept),
            nearest="`fsdp2`, where none keeps them, or `zero2`, where all do",
        )
    deviations = []
    usual = usual_units([variable.name for variable in domain.graph.variables])
    plain = replace(engine, param_dtype="", kept_between_batches="")
    if plain != FullyShard(usual, engine.shard_ranks, kept != {True}):
        deviations.append(
            f"torchtitan gathers each transformer block as one, {len(usual)} of them, and the next "
            f"while one computes; the strategy has {len(engine.units)} units."
        )
    if engine.kept_between_batches:
        deviations.append(
            "torchtitan has no setting for what is kept between the batches of an update; the "
            f"strategy keeps {engine.kept_between_batches}."
        )
    return {
        "data_parallel_replicate_degree": domain.world_size // engine.shard_ranks,
        "data_parallel_shard_degree": engine.shard_ranks,
        "fsdp_reshard_after_forward": "never" if kept == {True} else "always",
    }, deviations


def _replicated(strategy: Strategy, domain: Domain) -> tuple[Table, list[str]]:
    deviations, arguments = [], strategy.schedule.ddp
    lists = arguments is not None and bool(arguments.bucket_limits_bytes)
    if lists or strategy.schedule.slice_bytes != DDP_MEBIBYTES * MIB:
        deviations.append(
            f"torchtitan's DDP fills buckets of {DDP_MEBIBYTES} MiB, whatever the strategy's are."
        )
    if (batches := domain.accumulate) > 1:
        deviations.append(
            f"torchtitan's DDP all-reduces the gradients of each of the {batches} batches of an "
            "update; the strategy their sum, once."
        )
    return {
        "data_parallel_replicate_degree": domain.world_size,
        "data_parallel_shard_degree": 1,
    }, deviations


def _toml(name: str, table: Table) -> str:
    lines = [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: str | int) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
