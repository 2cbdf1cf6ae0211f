"""What the roofline's benchmark says of profiles whose seconds are known."""

from dataclasses import replace

import pytest

from autosync.profiling import estimate_profile
from benchmarks.roofline_error import class_of, errors_by_class
from tests.domains import chain_graph


def test_errors_add_up_by_class() -> None:
    graph = chain_graph(((8, 8),) * 4)
    kinds = ("linear", "convolution", "native_layer_norm", "relu")
    operations = tuple(
        replace(operation, type=kind)
        for operation, kind in zip(graph.operations, kinds, strict=True)
    )
    graph = replace(graph, operations=operations)
    estimate = estimate_profile(graph, "cpu")
    estimated = replace(estimate, forward_seconds=(2.0,) * 4, backward_seconds=(0.0,) * 4)
    measured = replace(estimate, forward_seconds=(1.0, 2.0, 0.5, 0.5), backward_seconds=(0.0,) * 4)
    step, errors = errors_by_class(graph, measured, estimated)
    assert step == 2.0
    found = {each.name: (each.share, each.ratio, each.within) for each in errors}
    assert found == {
        "matrix products": pytest.approx((0.25, 2.0, 1.0)),
        "convolutions": pytest.approx((0.5, 1.0, 0.5)),
        "normalizations": pytest.approx((0.125, 4.0, 2.0)),
        "elementwise and others": pytest.approx((0.125, 4.0, 2.0)),
    }


def test_unlisted_operations_count_as_others() -> None:
    assert class_of("embedding") == "lookups"
    assert class_of("unheard_of") == "elementwise and others"
