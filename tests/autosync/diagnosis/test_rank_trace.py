"""Reading one rank's trace."""

from typing import Any

import numpy as np
import pytest

from autosync.diagnosis.rank_trace import RankTrace, intersection, rank_trace, union, without
from autosync.errors import InvalidInput
from tests.autosync.diagnosis.traces import event, gloo_step, nccl_step, trace


def test_intervals_become_disjoint() -> None:
    assert union([(3, 4), (0, 2), (1, 2.5), (4, 5)]).tolist() == [[0, 2.5], [3, 5]]
    assert union([(0, 9), (1, 2)]).tolist() == [[0, 9]]


def test_intersection_and_rest_make_the_whole() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        one, other = (union([(a, a + b) for a, b in random.uniform(0, 5, (6, 2))]) for _ in "ab")
        both, rest = intersection(one, other), without(one, other)
        total = sum(float(np.diff(each, axis=1).sum()) for each in (both, rest))
        assert total == pytest.approx(float(np.diff(one, axis=1).sum()))
        assert not len(intersection(rest, other))


def test_a_call_that_issues_is_matched_with_gloos_mark() -> None:
    read = rank_trace(gloo_step(1, 600, 950), "t.json")
    (only,) = read.collectives
    assert (read.rank, read.host, read.on_device) == (1, "a", False)
    assert (only.operation, only.size_bytes) == ("all_reduce", 4000)
    assert (only.issued_seconds, only.end_seconds) == pytest.approx((600e-6, 950e-6))
    assert read.compute == pytest.approx(np.array([[100, 400], [420, 520]]) * 1e-6)
    assert read.input == pytest.approx(np.array([[0, 100]]) * 1e-6)


def test_operators_that_make_a_batch_are_input() -> None:
    """As of transforms in a DataLoader without workers."""
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("user_annotation", "enumerate(DataLoader)#x.__next__", 0, 40),
        event("cpu_op", "aten::stack", 10, 30),
        event("cpu_op", "aten::mm", 50, 90),
    ]
    read = rank_trace(trace(0, events), "t.json")
    assert read.compute == pytest.approx(np.array([[50, 90]]) * 1e-6)
    assert read.input == pytest.approx(np.array([[0, 40]]) * 1e-6)


def test_gloos_reduce_scatter_is_named_after_its_call() -> None:
    """gloo marks it as the all-reduce that it runs."""
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", "c10d::_reduce_scatter_base_", 10, 12),
        event("user_annotation", "gloo:all_reduce", 15, 40),
    ]
    (only,) = rank_trace(trace(0, events), "t.json").collectives
    assert only.operation == "reduce_scatter"
    assert only.end_seconds == pytest.approx(40e-6)


def test_kernels_count_where_there_are_any() -> None:
    read = rank_trace(nccl_step(0), "t.json")
    (only,) = read.collectives
    assert read.on_device
    assert read.compute == pytest.approx(np.array([[50, 600]]) * 1e-6)
    assert (only.operation, only.size_bytes) == ("all_reduce", 2000)
    assert (only.issued_seconds, only.end_seconds) == pytest.approx((500e-6, 900e-6))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"traceEvents": 3}, "no list"),
        (trace(0, [event("cpu_op", "aten::mm", 0, 1)]), "no marked steps"),
        (trace(0, [event("user_annotation", "ProfilerStep#0", 5, 5)]), "no marked steps"),
        (trace(0, [event("user_annotation", "ProfilerStep#0", 0, 1)]), "no operators"),
        ({**gloo_step(0, 600, 900), "distributedInfo": {}}, "does not state its rank"),
        ({**gloo_step(0, 600, 900), "distributedInfo": {"rank": -1}}, "does not state its rank"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(made: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=rf"t\.json.*{says}"):
        rank_trace(made, "t.json")


def read_beside(*hostile: Any) -> RankTrace:
    given = gloo_step(0, 600, 900)
    return rank_trace({**given, "traceEvents": [*given["traceEvents"], *hostile]}, "t.json")


@pytest.mark.parametrize(
    "job",
    [
        {"backend": "nccl"},
        {"backend": "cpu:gloo,cuda:nccl"},
        {"backend": "undefined", "pg_config": [{"backend_config": "cuda:nccl"}]},
    ],
)
def test_a_job_over_nccl_without_kernels_is_refused(job: dict[str, Any]) -> None:
    """However it names its backend: torch calls one that is left out "undefined"."""
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", "aten::mm", 0, 20),
        event("cpu_op", "c10d::allreduce_", 20, 22),
    ]
    with pytest.raises(InvalidInput, match="has no kernels, though the job sends by NCCL"):
        rank_trace({**trace(0, events), "distributedInfo": {"rank": 0, **job}}, "t.json")
    beside = {**gloo_step(0, 600, 900), "distributedInfo": {"rank": 0, **job}}
    if job["backend"] == "nccl":  # beside a group of gloo, NCCL sends the gradients
        with pytest.raises(InvalidInput, match="has no kernels, though the job sends by NCCL"):
            rank_trace(beside, "t.json")
    else:
        assert len(rank_trace(beside, "t.json").collectives) == 1


@pytest.mark.parametrize(
    "hostile",
    [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": "soon", "dur": 3},
        {"ph": "X", "cat": "kernel", "name": None, "ts": 1, "dur": 3},
        "no event",
    ],
)
def test_events_of_another_form_are_left_out(hostile: Any) -> None:
    plain, read = read_beside(), read_beside(hostile)
    assert read.collectives == plain.collectives
    assert read.compute.tolist() == plain.compute.tolist()
    assert not read.on_device


@pytest.mark.parametrize(
    "hostile",
    [
        event("cpu_op", "c10d::allreduce_", 0, 1, **{"Input Dims": [["x"]], "Input type": [3]}),
        event("kernel", "ncclDevKernel_X", 1, 2, **{"In msg nelems": "many", "dtype": []}),
    ],
)
def test_sizes_of_another_form_count_as_not_traced(hostile: Any) -> None:
    first, *_ = read_beside(hostile).collectives
    assert first.size_bytes is None


def test_sizes_that_no_tensor_has_count_as_not_traced() -> None:
    """Such as those that no float holds."""
    kernels, calls = nccl_step(0), gloo_step(0, 600, 900)
    kernels["traceEvents"][-1]["args"]["In msg nelems"] = 10**400
    calls["traceEvents"][-1]["args"]["Input Dims"] = [[10**200, 10**200]]
    for each in (kernels, calls):
        (only,) = rank_trace(each, "t.json").collectives
        assert only.size_bytes is None


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(x)", "all_reduce"),
        ("ncclSymkDevKernel_AllGather_LL(x)", "all_gather"),
    ],
)
def test_kernels_of_every_nccl_are_messages(name: str, operation: str) -> None:
    """Where a trace has no more of a kernel, its name says what it does."""
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("kernel", "ampere_gemm", 0, 20),
        event("kernel", name, 20, 60),
    ]
    read = rank_trace(trace(0, events), "t.json")
    assert [each.operation for each in read.collectives] == [operation]
    assert read.compute == pytest.approx(np.array([[0, 20]]) * 1e-6)


@pytest.mark.parametrize("other", ["gather", "scatter", "barrier"])
def test_other_operations_of_gloo_leave_each_call_its_mark(other: str) -> None:
    """Calls are matched with marks in order; where they are not as many, none lasts beyond its
    call."""
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", f"c10d::{other}_", 5, 6),
        event("user_annotation", f"gloo:{other}", 6, 9),
        event("cpu_op", "c10d::allreduce_", 10, 12),
        event("user_annotation", "gloo:all_reduce", 15, 40),
    ]
    *_, last = rank_trace(trace(0, events), "t.json").collectives
    assert last.operation == "all_reduce"
    assert last.end_seconds == pytest.approx(40e-6)
