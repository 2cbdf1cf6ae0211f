"""How people run a recorded model: in which precision, and with which activations kept."""

from dataclasses import replace
from typing import Literal, get_args

from autosync.domain import Profile
from autosync.errors import InvalidInput
from autosync.graph import ATTENTION, DType, ModelGraph, Operation

Precision = Literal["recorded", "bf16-autocast", "fp16-autocast", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""recorded: as the graph states. autocast: matrix products, convolutions and attention compute in
16 bits, parameters and gradients stay as they are. bf16: these are bfloat16, too."""

IN_16_BIT = frozenset(
    {"addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "convolution", ATTENTION}
)
"""What autocast runs in 16 bits (torch.amp, "CUDA ops that can autocast to float16"); what follows
them, such as activation functions, takes their type."""
IN_32_BIT = frozenset(
    {"_softmax", "softmax", "_log_softmax", "log_softmax", "nll_loss_forward", "nll_loss2d_forward",
     "native_layer_norm", "mse_loss", "pow", "exp", "sum", "cumsum", "embedding"}
)  # fmt: skip
"""What autocast keeps in float32, or reads from parameters that are."""


def at_precision(graph: ModelGraph, precision: Precision) -> ModelGraph:
    """The graph as it runs in that precision. What an operation of 16 bits writes takes half of the
    bytes of float32.

    Raises:
        InvalidInput: no such precision, or the graph was recorded in 16 bits already.
    """
    if precision not in PRECISIONS:
        raise InvalidInput(
            f"precision {precision!r} is unknown.",
            thing="precision",
            value=precision,
            remedy=f"Known: {', '.join(PRECISIONS)}.",
        )
    if precision == "recorded":
        return graph
    recorded = {each.dtype for each in graph.operations}
    recorded |= {each.dtype for each in graph.variables}
    if recorded != {"float32"}:
        raise InvalidInput(
            f"graph {graph.name!r} was recorded in {', '.join(sorted(recorded))}; only one in "
            "float32 can be taken for another precision.",
            thing="precision",
            value=precision,
            remedy="Leave it out, or record the model in float32.",
        )
    half = precision == "bf16"
    dtype: DType = "float16" if precision == "fp16-autocast" else "bfloat16"

    def lowered(operation: Operation) -> Operation:
        if not half and operation.type in IN_32_BIT:
            return operation
        return replace(operation, dtype=dtype, output_bytes=operation.output_bytes // 2)

    variables = tuple(replace(each, dtype="bfloat16") if half else each for each in graph.variables)
    return replace(graph, operations=tuple(map(lowered, graph.operations)), variables=variables)


def with_recomputation(profile: Profile, step_seconds: float | None = None) -> Profile:
    """Under activation checkpointing: backward computes each operation's forward pass once more.

    step_seconds: what both passes take then, where that is known.
    """
    both = list(zip(profile.forward_seconds, profile.backward_seconds, strict=True))
    whole = sum(2 * forward + backward for forward, backward in both)
    scale = 1.0 if step_seconds is None or not whole else step_seconds / whole
    return replace(
        profile,
        forward_seconds=tuple(scale * forward for forward, _ in both),
        backward_seconds=tuple(scale * (forward + backward) for forward, backward in both),
        note=f"{profile.note}; backward computes activations anew",
    )
