"""DeepSpeed's configuration: ZeRO stage 1 or 2 and the sizes of its buckets.

Written after DeepSpeed's `stage_1_and_2.py` (0.19): before a gradient that would fill the bucket
beyond `reduce_bucket_size` elements the bucket is sent.
"""

from typing import Any

from autosync.domain import Domain
from autosync.exports.settings import (
    FrameworkSettings,
    GradientMessage,
    all_reduced_messages,
    one_encoding,
    reduce_scattered_messages,
    refused,
    schedule_deviations,
    sparse_variables,
)
from autosync.strategy import AllReduce, Encoding, ReduceScatter, Strategy

DATA_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""`communication_data_type` of unpacked gradients, by their type; encodings are spelled alike."""
HALF_MODEL = {
    "fp16": {"enabled": True, "loss_scale": 1.0},
    "bf16": {"enabled": True},
}
"""What a model of that type needs; a loss scale of 1 leaves scaling to the script."""
STAGE_0_ELEMENTS = 500_000_000
"""Of a bucket without ZeRO (`MEMORY_OPT_ALLREDUCE_SIZE`), which no setting changes."""
ALIGNED_ELEMENTS = 2
"""What `allgather_bucket_size` must be a multiple of (`nccl_start_alignment_factor`)."""
SNIPPET = """import deepspeed

model, optimizer, _, _ = deepspeed.initialize(
    model=model, optimizer=optimizer, config="{file}"
)
# then model.backward(loss) and model.step() in place of the usual two
"""
ZERO_NOTE = """# ZeRO updates each rank's part of the values: take an optimizer that computes each
# element by itself, as SGD and Adam do
"""
CONFIGURATION_FILE = "deepspeed.json"


def deepspeed_settings(strategy: Strategy, domain: Domain) -> FrameworkSettings:
    """The configuration file, as data.

    Raises:
        InvalidStrategy, NotSupported: DeepSpeed cannot run it; names the variable and why.
    """
    if sparse := sparse_variables(domain):
        raise refused(
            "deepspeed",
            f"the gradient of {sparse[0].name!r} is sparse, and ZeRO takes dense ones",
            thing=f"variable {sparse[0].name}",
        )
    if all(isinstance(s, AllReduce) for choice in strategy.choices for s in choice.shards):
        zero, encoding, deviations = _without_zero(strategy, domain)
    else:
        zero, encoding, deviations = _with_zero(strategy, domain)
    model_type = DATA_TYPES[_one_type(domain)]
    sent_type = model_type if encoding.name == "none" else encoding.name
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": domain.batch_size,
        "gradient_accumulation_steps": domain.accumulate,
        "gradient_clipping": 0.0,  # DeepSpeed's own default clips the norm to 1 from 0.19 on
        "communication_data_type": sent_type,
    }
    if model_type in HALF_MODEL:
        settings[model_type] = HALF_MODEL[model_type]
        deviations.append(
            f"DeepSpeed keeps float32 copies of {model_type} values and updates those."
        )
    if domain.accumulate > 1:
        deviations += _accumulating(domain.accumulate, zero["stage"])
    snippet = SNIPPET.format(file=CONFIGURATION_FILE)
    if zero["stage"]:
        snippet += ZERO_NOTE
        settings["zero_allow_untested_optimizer"] = True
    return FrameworkSettings(
        framework="deepspeed",
        strategy_id=strategy.id,
        deviations=tuple(deviations),
        settings={**settings, "zero_optimization": zero},
        environment={},
        snippet=snippet,
    )


def _without_zero(strategy: Strategy, domain: Domain) -> tuple[dict[str, Any], Encoding, list[str]]:
    """Stage 0 sums up all gradients after the backward pass. Raises NotSupported."""
    messages = all_reduced_messages(strategy, domain, "deepspeed")
    if len(messages) > 1 or strategy.schedule.order == "ddp":
        why = (
            f"it all-reduces {len(messages)} messages within the backward pass, and without ZeRO "
            "DeepSpeed sums up all gradients after it"
        )
        raise refused("deepspeed", why, thing="messages", value=len(messages))
    if messages[0].elements > STAGE_0_ELEMENTS:
        why = f"its message holds more than {STAGE_0_ELEMENTS} elements, the most of a bucket there"
        raise refused("deepspeed", why, thing="messages", value=messages[0].elements)
    return (
        {"stage": 0},
        one_encoding(messages, "deepspeed"),
        schedule_deviations(strategy, messages, "deepspeed"),
    )


def _with_zero(strategy: Strategy, domain: Domain) -> tuple[dict[str, Any], Encoding, list[str]]:
    """Stage 2 sends buckets within the backward pass; a single message is stage 1's."""
    messages = reduce_scattered_messages(strategy, domain, "deepspeed")
    if strategy.schedule.overlap_forward:
        raise refused(
            "deepspeed",
            "its messages continue during the next forward pass, and ZeRO gathers values within "
            "`step()`",
            thing="schedule.overlap_forward",
            value=True,
        )
    if not domain.optimizer.elementwise:
        raise refused(
            "deepspeed",
            f"{domain.optimizer.name} needs whole variables for its update, and ZeRO gives each "
            "rank a part of them",
            thing="optimizer",
            value=domain.optimizer.name,
        )
    elements = [variable.elements for variable in domain.graph.variables]
    ready = [elements[index] for index in domain.graph.gradient_order]
    wanted = {message.variables for message in messages}
    size = _size_that_fills(messages, wanted, ready, domain)
    deviations = [
        "ZeRO gives each rank one part of all parameters, so that a message is reduced to the "
        "ranks whose parts it holds; the strategy scatters each message over all ranks.",
        *schedule_deviations(strategy, messages, "deepspeed"),
    ]
    if not all(
        isinstance(m.synchronizer, ReduceScatter) and m.synchronizer.sharded_update
        for m in messages
    ):
        deviations.append(
            "ZeRO gathers new values, and each rank updates its part alone; the strategy gathers "
            "gradients, and each rank updates everything."
        )
    if size is None:
        size = max(message.elements for message in messages)
        count = len(zero_buckets(ready, size))
        deviations.append(
            f"ZeRO fills buckets one after the other up to {size} elements: {count} messages in "
            f"place of the strategy's {len(messages)}."
        )
    zero = {
        "stage": 1 if len(messages) == 1 else 2,
        "reduce_scatter": True,
        "reduce_bucket_size": size,
        "allgather_partitions": True,
        "allgather_bucket_size": size + size % ALIGNED_ELEMENTS,
        "overlap_comm": len(messages) > 1,
        "contiguous_gradients": True,
    }
    return zero, one_encoding(messages, "deepspeed"), deviations


def _accumulating(batches: int, stage: int) -> list[str]:
    """What DeepSpeed does otherwise where an update adds up the gradients of several batches."""
    said = [
        f"DeepSpeed divides each loss by the {batches} batches of an update: call model.backward() "
        "and model.step() for each batch, and leave the division out of the script."
    ]
    if stage == 2:  # which holds only parts of gradients between batches
        said.append(
            f"ZeRO 2 reduces the gradients of each of the {batches} batches; the strategy their "
            "sum, once."
        )
    return said


def _one_type(domain: Domain) -> str:
    """Of all variables. Raises NotSupported."""
    types = sorted({variable.dtype for variable in domain.graph.variables})
    if len(types) > 1 or types[0] not in DATA_TYPES:
        known = "" if len(types) > 1 else ", which it does not send"
        why = f"its gradients have the types {', '.join(types)}{known}"
        raise refused("deepspeed", why, thing="variables", value=types)
    return types[0]


def zero_buckets(elements: list[int], bucket_elements: int) -> list[int]:
    """How many gradients each bucket of ZeRO holds. elements: of the gradients, as they get
    ready."""
    counts: list[int] = []
    filled = 0
    for size in elements:
        if counts and filled + size <= bucket_elements:
            counts[-1] += 1
            filled += size
        else:
            counts.append(1)
            filled = size
    return counts


def _size_that_fills(
    messages: list[GradientMessage],
    wanted: set[tuple[int, ...]],
    ready: list[int],
    domain: Domain,
) -> int | None:
    """`reduce_bucket_size` under which buckets are the messages; None where there is none."""
    order = domain.graph.gradient_order
    for size in sorted({message.elements for message in messages}, reverse=True):
        found, at = set(), 0
        for count in zero_buckets(ready, size):
            found.add(tuple(order[at : at + count]))
            at += count
        if found == wanted:
            return size
    return None
