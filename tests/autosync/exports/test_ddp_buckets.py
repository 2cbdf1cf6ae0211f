"""DDP's buckets are torch's own, and limits are found for any buckets that DDP can fill."""

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C import _distributed_c10d as c10d

from autosync.exports.ddp import ddp_buckets, limits_that_fill
from autosync.graph import ModelGraph, Variable
from tests.domains import chain_graph

MIXED = (("float32", (10, 30)), ("bfloat16", (7,)), ("float32", (9,)), ("float32", (40, 4)))


def mixed_graph() -> ModelGraph:
    variables = tuple(Variable(f"v{i}", s, dtype) for i, (dtype, s) in enumerate(MIXED))  # type: ignore[arg-type]
    graph = replace(chain_graph(tuple(s for _, s in MIXED)), variables=variables)
    return replace(graph, gradient_order=(2, 3, 1, 0))


@pytest.mark.parametrize(
    "limits", [(1,), (1, 1), (64, 400), (100, 10**9), (10**9, 10**9), (36, 640, 1200)]
)
def test_buckets_are_torchs_own(limits: tuple[int, ...]) -> None:
    graph = mixed_graph()
    tensors = [torch.empty(s, dtype=getattr(torch, dtype)) for dtype, s in MIXED]
    order = list(graph.gradient_order)
    expected, _ = c10d._compute_bucket_assignment_by_size(
        [tensors[i] for i in order], list(limits), [False] * len(order), order
    )
    assert sorted(ddp_buckets(graph, limits)) == sorted(tuple(bucket) for bucket in expected)


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=6))
def test_any_neighbours_can_be_a_bucket(sizes: list[list[int]]) -> None:
    graph = chain_graph(tuple((size,) for bucket in sizes for size in bucket))
    ends = [0, *accumulate(map(len, sizes))]
    wanted = [graph.gradient_order[start:stop] for start, stop in pairwise(ends)]
    limits = limits_that_fill(graph, wanted)
    assert limits is not None
    assert set(ddp_buckets(graph, limits)) == set(wanted)


def test_one_limit_where_one_will_do() -> None:
    graph = chain_graph(((10,),) * 6)
    assert limits_that_fill(graph, [(5, 4), (3, 2), (1, 0)]) == (80,)
    assert limits_that_fill(graph, [(5,), (4, 3, 2), (1, 0)]) == (40, 120, 240)
    assert limits_that_fill(graph, [(5, 4, 3, 2, 1, 0)]) == (240,)


def test_no_bucket_limits_reproduce_a_gap_in_the_order() -> None:
    graph = chain_graph(((10,),) * 4)
    assert limits_that_fill(graph, [(3, 1), (2, 0)]) is None
    assert limits_that_fill(mixed_graph(), [(2,), (3, 0), (1,)]) is not None
    # the second bucket of each type would need limits of its own
    types = (("float32", (8,)), ("bfloat16", (64,)), ("float32", (8,)), ("bfloat16", (64,)))
    variables = tuple(Variable(f"v{i}", s, dtype) for i, (dtype, s) in enumerate(types))  # type: ignore[arg-type]
    both = replace(chain_graph(((8,),) * 4), variables=variables)
    assert limits_that_fill(both, [(2, 0), (3,), (1,)]) == (128,)
    assert limits_that_fill(both, [(2,), (0,), (3, 1)]) is None
