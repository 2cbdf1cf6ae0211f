"""How people run a recorded model: in which precision, and with which activations kept."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from autosync.domain import Profile
from autosync.errors import InvalidInput
from autosync.graph import DType, ModelGraph, Operation
from autosync.profiling import EFFICIENCY, estimate_profile, profile_from_step_seconds

Precision = Literal["recorded", "tf32", "bf16-autocast", "fp16-autocast", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""recorded: as the graph states; float32 as torch takes it by default, on NVIDIA GPUs convolutions
as TF32 and matrix products not. tf32: both. autocast: matrix products, convolutions and attention
compute in 16 bits, parameters and gradients stay as they are. bf16: these are bfloat16, too."""


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """How a job runs a recorded model, and what is known of its speed.

    recompute: whether backward computes activations anew. step_seconds: of both passes on one
    device. efficiency: share of the device's peak that an estimate assumes.
    """

    precision: Precision = "recorded"
    recompute: bool = False
    step_seconds: float | None = None
    efficiency: float | None = None


AS_RECORDED = ComputeSettings()

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
    if precision in ("recorded", "tf32"):  # the same types; see `estimate_profile`
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

    operations = tuple(map(lowered, graph.operations))
    if not half:
        return replace(graph, operations=operations)
    variables = tuple(replace(each, dtype="bfloat16") for each in graph.variables)
    frozen_bytes = graph.frozen_bytes // 2
    return replace(graph, operations=operations, variables=variables, frozen_bytes=frozen_bytes)


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


def profile_at(
    graph: ModelGraph,
    device_type: str,
    settings: ComputeSettings = AS_RECORDED,
    given: Profile | None = None,
) -> Profile:
    """The given profile, or else a roofline of the device, or one scaled to the step's seconds.

    graph: at the settings' precision already.

    Raises:
        InvalidInput: two of the settings exclude each other, or a setting and the given profile.
    """
    step_seconds, efficiency = settings.step_seconds, settings.efficiency
    tf32 = settings.precision == "tf32"
    if given is not None:
        _check_given(settings)
        return given
    if step_seconds is not None:
        if efficiency is not None:
            raise InvalidInput(
                "a step's seconds and an efficiency are both given, but known seconds leave "
                "nothing to assume.",
                thing="efficiency",
                value=efficiency,
                remedy="Leave efficiency out.",
            )
        known = profile_from_step_seconds(graph, step_seconds, device_type, tf32=tf32)
        return with_recomputation(known, step_seconds) if settings.recompute else known
    found = estimate_profile(
        graph,
        device_type,
        efficiency=EFFICIENCY if efficiency is None else efficiency,
        tf32=tf32,
    )
    return with_recomputation(found) if settings.recompute else found


def _check_given(settings: ComputeSettings) -> None:
    """
    Raises:
        InvalidInput: what a given profile states already.
    """
    stated = {
        # others change the graph, too
        "precision": settings.precision if settings.precision == "tf32" else None,
        "recompute": settings.recompute,
        "step_seconds": settings.step_seconds,
        "efficiency": settings.efficiency,
    }
    for thing, value in stated.items():
        if value:
            raise InvalidInput(
                f"a profile and {thing} are both given, but a profile's seconds are what forward "
                "and backward take.",
                thing=thing,
                value=value,
                remedy=f"Profile the model as it runs, and leave {thing} out.",
            )
