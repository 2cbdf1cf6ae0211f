"""Arguments of Megatron-LM's training commands: how its data-parallel ranks synchronize.

Megatron fills a bucket in the reverse order of the model's parameters until it holds
`--ddp-bucket-size` elements or more. Without `--overlap-grad-reduce` there is one bucket. With
`--use-distributed-optimizer` buckets are reduce-scattered, and new values all-gathered.
"""

from autosync.domain import Domain
from autosync.exports.settings import (
    FrameworkSettings,
    GradientMessage,
    all_reduced_messages,
    check_variables,
    one_encoding,
    one_type,
    reduce_scattered_messages,
    refused,
    schedule_deviations,
    sparse_variables,
)
from autosync.strategy import ReduceScatter, Strategy

Flags = dict[str, bool | int]


def megatron_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """
    Raises:
        InvalidStrategy, NotSupported: Megatron-LM cannot run it; names the variable and why.
    """
    check_variables(strategy, domain)
    if sparse := sparse_variables(domain):
        raise refused(
            "megatron",
            f"the gradient of {sparse[0].name!r} is sparse, and its buckets are dense",
            thing=f"variable {sparse[0].name}",
        )
    if strategy.engine is not None:
        raise refused(
            "megatron",
            "these arguments keep every rank's parameters whole",
            thing="engine",
            value=strategy.engine.kind,
            nearest="the design `zero1_overlap`, its distributed optimizer",
        )
    messages, flags = _messages(strategy, domain)
    if (encoding := one_encoding(messages, "megatron")).name != "none":
        raise refused(
            "megatron",
            f"it packs no gradients as {encoding.name}",
            thing="encoding",
            value=encoding.name,
            nearest="the same strategy with its messages as they are",
        )
    deviations = schedule_deviations(strategy, messages, "megatron")
    if len(messages) > 1 or flags.get("--overlap-param-gather"):
        size, formed = _bucket_size(messages, domain)
        flags |= {"--overlap-grad-reduce": True, "--ddp-bucket-size": size}
        if formed != {frozenset(message.variables) for message in messages}:
            deviations.append(
                f"Megatron-LM fills buckets in the reverse order of parameters up to {size:,} "
                f"elements: {len(formed)} messages in place of the strategy's {len(messages)}."
            )
    if one_type(domain, "megatron") == "bfloat16":
        flags["--grad-reduce-in-bf16"] = True  # by default gradients of bf16 travel as float32
    return FrameworkSettings(
        framework="megatron",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings={"arguments": flags},
        environment={},
        snippet="".join(_line(name, value) for name, value in flags.items()),
    )


def _line(name: str, value: bool | int) -> str:
    return f"{name}\n" if value is True else f"{name} {value}\n"


def _messages(strategy: Strategy, domain: Domain) -> tuple[list[GradientMessage], Flags]:
    """The messages, and the arguments that say how each is reduced. Raises NotSupported."""
    shards = [shard for choice in strategy.choices for shard in choice.shards]
    scattered = [shard for shard in shards if isinstance(shard, ReduceScatter)]
    if not scattered:
        return all_reduced_messages(strategy, domain, "megatron"), {}
    if not all(shard.sharded_update for shard in scattered):
        raise refused(
            "megatron",
            "it gathers new values behind a reduce-scatter, and the strategy gathers gradients",
            thing="sharded_update",
            value=False,
            nearest="the same strategy with sharded updates, as the design `zero1` has them",
        )
    messages = reduce_scattered_messages(strategy, domain, "megatron")
    if not domain.optimizer.elementwise:
        raise refused(
            "megatron",
            f"its distributed optimizer updates parts of variables, and {domain.optimizer.name} "
            "needs whole ones",
            thing="optimizer",
            value=domain.optimizer.name,
        )
    flags: Flags = {"--use-distributed-optimizer": True}
    if strategy.schedule.overlap_forward:
        flags["--overlap-param-gather"] = True
    return messages, flags


def _bucket_size(
    messages: list[GradientMessage], domain: Domain
) -> tuple[int, set[frozenset[int]]]:
    """The size whose buckets are the messages, else that of as many buckets as can be, and the
    buckets that Megatron forms with it."""
    wanted = {frozenset(message.variables) for message in messages}
    mean = sum(message.elements for message in messages) // len(messages)
    sizes = sorted({message.elements for message in messages}, reverse=True)
    found = {size: megatron_buckets(domain, size) for size in dict.fromkeys((*sizes, mean))}
    exact = next((size for size, formed in found.items() if set(formed) == wanted), None)
    size = exact or min(found, key=lambda each: abs(len(found[each]) - len(messages)))
    return size, set(found[size])


def megatron_buckets(domain: Domain, bucket_elements: int) -> list[frozenset[int]]:
    """Variables of each bucket, by index."""
    buckets: list[frozenset[int]] = []
    filling: list[int] = []
    elements = 0
    for index in reversed(range(len(domain.graph.variables))):
        filling.append(index)
        elements += domain.graph.variables[index].elements
        if elements >= bucket_elements:
            buckets.append(frozenset(filling))
            filling, elements = [], 0
    return [*buckets, frozenset(filling)] if filling else buckets
