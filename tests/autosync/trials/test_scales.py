"""Scales at which a small machine carries a cluster, and plans scaled by the byte scale."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.bundle import make_bundle
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.graph import ModelGraph
from autosync.plan import Plan
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    ParameterServer,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.trials.scales import (
    CORES_A_RANK,
    automatic_scales,
    cores_a_rank,
    scale_plan,
    scaled_bundle,
    scaled_graph,
    shard_elements,
    time_scale_of_cores,
)
from tests.autosync.trials.strategies import ddp, mixed, small_domain
from tests.domains import chain_graph, domain_of, grid_cluster


@pytest.mark.parametrize(
    ("gbps", "operation_seconds", "expected"),
    [(0.1, 1e-2, (1.0, 1.0)), (9.56, 1e-2, (1 / 32, 2.0)), (40.0, 1e-2, (1 / 32, 8.0))],
)
def test_automatic_scales_keep_links_within_what_cores_carry(
    gbps: float, operation_seconds: float, expected: tuple[float, float]
) -> None:
    domain: Domain = domain_of(None, grid_cluster(4, 1, gbps), operation_seconds)
    assert automatic_scales(domain) == expected


def test_automatic_scales_stretch_short_compute() -> None:
    byte_scale, time_scale = automatic_scales(domain_of(None, grid_cluster(4, 1, 0.25), 1e-4))
    assert byte_scale == 1.0
    assert 6 * 3e-4 * time_scale >= 0.02


@pytest.mark.parametrize(
    ("ranks", "cores", "expected"),
    [(4, 2, 4.0), (8, 2, 8.0), (4, 3, 8 / 3), (4, 8, 1.0), (2, 64, 1)],
)
def test_ranks_get_their_cores_by_slowing_down(ranks: int, cores: int, expected: float) -> None:
    """As many as the machine has are not taken away: nothing runs faster than the cluster."""
    found = time_scale_of_cores(ranks, cores)
    assert found == expected
    assert cores_a_rank(ranks, cores, found) >= CORES_A_RANK


SCALES = (1.0, 0.5, 0.25, 0.125, 0.0625)


def assert_covered(plan: Plan, graph: ModelGraph) -> None:
    """Shards tile their variables; buckets hold every element of every shard once."""
    covered: dict[int, list[tuple[int, int]]] = {}
    for shard in plan.shards:
        unit = shard_elements(replace(shard, length=1), graph.variables[shard.variable])
        start = shard.offset * unit
        covered.setdefault(shard.variable, []).append((start, start + shard.length * unit))
    for index, variable in enumerate(graph.variables):
        ranges = covered[index]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == variable.elements
        assert all(left[1] == right[0] for left, right in pairwise(ranges))
    held: dict[int, list[tuple[int, int]]] = {}
    for pieces in plan.buckets:
        assert pieces
        for piece in pieces:
            held.setdefault(piece.shard, []).append((piece.start, piece.stop))
    for index, shard in enumerate(plan.shards):
        ranges = sorted(held.get(index, []))
        total = shard_elements(shard, graph.variables[shard.variable])
        assert sum(stop - start for start, stop in ranges) == total
        assert all(left[1] <= right[0] for left, right in pairwise(ranges))


@given(
    parts=st.integers(1, 7),
    axis=st.integers(0, 1),
    slice_bytes=st.sampled_from([0, 1000, 4096]),
    byte_scale=st.sampled_from(SCALES),
    rows=st.integers(7, 200),
)
def test_cut_and_sliced_plans_cover_their_variables(
    parts: int, axis: int, slice_bytes: int, byte_scale: float, rows: int
) -> None:
    domain = domain_of(chain_graph(((rows, 33), (9, 7), (rows,))), grid_cluster(2))
    choices = []
    for index, variable in enumerate(domain.graph.variables):
        cut = min(axis, len(variable.shape) - 1)
        partition = split(variable.shape, cut, parts)
        shards = tuple(AllReduce(index % 2) for _ in partition.lengths)
        choices.append(VariableChoice(variable.name, partition, shards))
    schedule = Schedule(slice_bytes=slice_bytes)
    strategy = Strategy(tuple(choices), even_replicas(2), schedule)
    plan = make_bundle(strategy, domain).plan
    assert_covered(plan, domain.graph)
    assert_covered(
        scale_plan(plan, domain.graph, byte_scale), scaled_graph(domain.graph, byte_scale)
    )


@pytest.mark.parametrize("byte_scale", SCALES)
def test_bytes_shrink_by_the_scale(byte_scale: float) -> None:
    domain = domain_of(chain_graph(((640, 320), (1024, 640))), grid_cluster(2))
    before = mixed(domain).plan
    after = scale_plan(before, domain.graph, byte_scale)
    assert [m.operation for m in after.messages] == [m.operation for m in before.messages]
    for big, small in zip(before.messages, after.messages, strict=True):
        assert small.wire_bytes == pytest.approx(big.wire_bytes * byte_scale, rel=1e-3)
    assert scale_plan(ddp(domain).plan, domain.graph, byte_scale).bucket_bytes == int(
        25 * 2**20 * byte_scale
    )


def test_rows_of_sparse_variables_stay_whole() -> None:
    domain = domain_of(chain_graph(((100, 16), (50, 8)), sparse=(0, 1)), grid_cluster(2))
    table = domain.graph.variables[0]
    choices = (
        VariableChoice("v0", split(table.shape, 0, 3), (ParameterServer(0, 0),) * 3),
        VariableChoice("v1", whole((50, 8)), (AllGather(1),)),
    )
    plan = make_bundle(Strategy(choices, even_replicas(2)), domain).plan
    small = scaled_graph(domain.graph, 0.25)
    after = scale_plan(plan, domain.graph, 0.25)
    assert [variable.shape for variable in small.variables] == [(25, 16), (13, 8)]
    assert_covered(after, small)
    assert [shard.axis for shard in after.shards[:3]] == [0, 0, 0]
    assert all(
        piece.start % 16 == piece.stop % 16 == 0
        for pieces in after.buckets
        for piece in pieces
        if after.shards[piece.shard].variable == 0
    )
    assert {m.operation for m in after.messages} >= {Op.SPARSE_PUSH, Op.SPARSE_ALL_GATHER}


def test_factors_shrink_with_their_product() -> None:
    graph = chain_graph(((400, 800),), factor_rows=32)
    weight = scaled_graph(graph, 1 / 16).variables[0]
    assert (weight.shape, weight.factor_rows) == ((100, 200), 8)


def test_messages_too_small_for_an_element_vanish_with_their_chain() -> None:
    domain = domain_of(chain_graph(((16,), (64, 64))), grid_cluster(2))
    choices = (
        VariableChoice(
            "v0", split((16,), 0, 4), tuple(ParameterServer(0, group) for group in range(4))
        ),
        VariableChoice("v1", whole((64, 64)), (ParameterServer(1, 4),)),
    )
    plan = make_bundle(Strategy(choices, even_replicas(2)), domain).plan
    after = scale_plan(plan, domain.graph, 1 / 16)
    assert_covered(after, scaled_graph(domain.graph, 1 / 16))
    assert len(after.messages) == 4 < len(plan.messages)
    for message in after.messages:
        if message.after >= 0:
            assert after.messages[message.after].bucket == message.bucket


def test_unusable_scales_are_refused() -> None:
    domain = small_domain()
    with pytest.raises(InvalidInput, match="byte scale is 2"):
        scaled_graph(domain.graph, 2)
    shipped = ddp(domain)
    with pytest.raises(InvalidInput, match="another graph"):
        scaled_bundle(replace(shipped, variables=shipped.variables[1:]), domain, 0.5)


def test_powersgd_is_measured_unscaled_or_not_at_all() -> None:
    domain = domain_of(chain_graph(((64, 48), (64,))), grid_cluster(2))
    packed = Encoding("powersgd", 2)
    choices = (
        VariableChoice("v0", whole((64, 48)), (AllReduce(0, encoding=packed),)),
        VariableChoice("v1", whole((64,)), (AllReduce(1),)),
    )
    shipped = make_bundle(Strategy(choices, even_replicas(2)), domain)
    with pytest.raises(NotSupported, match=r"message \d is packed by PowerSGD of rank 2.*Measure"):
        scaled_bundle(shipped, domain, 0.5)
    whole_size = scaled_bundle(shipped, domain, 1.0)
    assert any(message.encoding for message in whole_size.plan.messages)
