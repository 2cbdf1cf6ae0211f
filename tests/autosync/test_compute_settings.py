"""Models in other precisions than they were recorded in, and with activations computed anew."""

import pytest

from autosync.compute_settings import (
    PRECISIONS,
    ComputeSettings,
    at_precision,
    profile_at,
    with_recomputation,
)
from autosync.errors import InvalidInput
from autosync.models import bundled
from autosync.profiling import estimate_profile, profile_from_step_seconds


def test_autocast_halves_activations_and_leaves_gradients_alone() -> None:
    graph = bundled("gpt2", 8)
    assert at_precision(graph, "recorded") is graph
    cast = at_precision(graph, "fp16-autocast")
    assert cast.variables == graph.variables
    by_type = {operation.type: operation.dtype for operation in cast.operations}
    assert by_type["addmm"] == "float16"
    assert by_type["native_layer_norm"] == "float32"
    for before, after in zip(graph.operations, cast.operations, strict=True):
        half = after.dtype != "float32"
        assert after.output_bytes == (before.output_bytes // 2 if half else before.output_bytes)


def test_bf16_halves_gradients_too() -> None:
    graph = bundled("gpt2", 8)
    assert at_precision(graph, "bf16").size_bytes == graph.size_bytes / 2


def test_less_precise_is_faster_on_tensor_cores() -> None:
    for name in ("gpt2", "resnet50"):
        graph = bundled(name, 64)
        plain, full, cast, pure = (
            estimate_profile(at_precision(graph, each), "a100", tf32=each == "tf32").compute_seconds
            for each in ("recorded", "tf32", "bf16-autocast", "bf16")
        )
        assert 0.4 * full < pure <= cast < 0.9 * full
        assert plain > (2 * full if name == "gpt2" else full)


def test_what_cannot_be_is_refused() -> None:
    graph = bundled("resnet50", 8)
    with pytest.raises(InvalidInput, match="recorded in bfloat16"):
        at_precision(at_precision(graph, "bf16"), "bf16-autocast")
    with pytest.raises(InvalidInput, match="fp4") as refused:
        at_precision(graph, "fp4")  # type: ignore[arg-type]
    assert all(each in str(refused.value.remedy) for each in PRECISIONS)


def test_recomputed_activations_lengthen_backward_by_a_forward_pass() -> None:
    graph = bundled("resnet50", 8)
    plain = estimate_profile(graph, "a100")
    anew = with_recomputation(plain)
    assert anew.forward_seconds == plain.forward_seconds
    assert anew.compute_seconds == pytest.approx(plain.compute_seconds + sum(plain.forward_seconds))
    known = with_recomputation(profile_from_step_seconds(graph, 0.2, "a100"), 0.2)
    assert known.compute_seconds == pytest.approx(0.2)


def test_known_seconds_are_shared_out_as_the_precision_takes_them() -> None:
    graph = bundled("gpt2", 4)
    known = profile_at(graph, "a100", ComputeSettings("tf32", step_seconds=0.2))
    shape = estimate_profile(graph, "a100", tf32=True, host_seconds=0.0)
    scale = 0.2 / shape.compute_seconds
    assert known.forward_seconds == pytest.approx(tuple(scale * s for s in shape.forward_seconds))
    plain = profile_at(graph, "a100", ComputeSettings(step_seconds=0.2))
    assert sum(known.forward_seconds) + sum(known.backward_seconds) == pytest.approx(0.2)
    matrix = [o.type for o in graph.operations].index("addmm")
    assert known.forward_seconds[matrix] < 0.9 * plain.forward_seconds[matrix]


@pytest.mark.parametrize(
    "settings",
    [
        ComputeSettings(recompute=True),
        ComputeSettings(step_seconds=0.1),
        ComputeSettings(efficiency=0.4),
        ComputeSettings("tf32"),
    ],
)
def test_a_profile_leaves_nothing_to_estimate(settings: ComputeSettings) -> None:
    graph = bundled("resnet50", 8)
    with pytest.raises(InvalidInput, match="are both given"):
        profile_at(graph, "a100", settings, estimate_profile(graph, "a100"))
