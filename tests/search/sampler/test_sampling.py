import hashlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.cluster import Cluster, Device, Link, Node
from autosync.codes import Method, Order
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.population import BY_STRATEGY, Population, concatenate, decode, encode
from autosync.search import domain_facts
from autosync.search.domain_facts import ring_orders
from autosync.search.sampler.sampling import sample, sample_at
from autosync.search.space import Space
from autosync.strategy import (
    AllGather,
    AllReduce,
    ParameterServer,
    Partition,
    ReduceScatter,
    VariableChoice,
    pieces,
    split,
    whole,
)
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import check_groups, domains, lossy, seeds, spaces, unconstrained

SMALL = Space(whole_below_bytes=1000)
OWNERS_ONLY = Space(all_reduce=False, reduce_scatter=False)


def assert_same(left: Population, right: Population) -> None:
    for field in fields(Population):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name


def spans(drawn: Population) -> list[tuple[int, int]]:
    """First row of each strategy, and that behind its last."""
    return [(int(a), int(b)) for a, b in zip(drawn.first, drawn.first[1:], strict=False)]


@given(domains(), unconstrained, seeds, st.booleans())
def test_every_sample_verifies(domain: Domain, space: Space, seed: int, allow_lossy: bool) -> None:
    if allow_lossy:
        space = replace(space, encodings=lossy)
    drawn = sample(domain, space, 0, 20, seed)
    for index in range(len(drawn)):
        verify(decode(drawn, index, domain), domain, allow_lossy=allow_lossy)


@given(domains(), unconstrained, seeds, st.integers(0, 2**62), st.integers(0, 12))
def test_a_row_depends_only_on_seed_and_index(
    domain: Domain, space: Space, seed: int, start: int, cut: int
) -> None:
    at_once = sample(domain, space, start, 12, seed)
    chunks = [sample(domain, space, start, cut, seed)]
    chunks.append(sample(domain, space, start + cut, 12 - cut, seed))
    joined = concatenate(chunks)
    assert_same(at_once, joined)
    shuffled = np.random.default_rng(cut).permutation(12)
    scattered = sample_at(domain, space, (start + shuffled).astype(np.uint64), seed)
    assert_same(at_once.take(shuffled), scattered)


def test_threads_and_processes_draw_the_same() -> None:
    domain = domain_of()
    expected = sample(domain, SMALL, 0, 64, 7)
    with ThreadPoolExecutor(4) as pool:
        chunks = list(pool.map(lambda at: sample(domain, SMALL, at, 8, 7), range(0, 64, 8)))
    assert_same(expected, concatenate(chunks))
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        elsewhere = processes.apply(sample, (domain, SMALL, 0, 64, 7))
    assert_same(expected, elsewhere)


def test_another_seed_draws_others() -> None:
    domain = domain_of()
    left, right = sample(domain, SMALL, 0, 50, 1), sample(domain, SMALL, 0, 50, 2)
    same = [decode(left, i, domain).id == decode(right, i, domain).id for i in range(50)]
    assert sum(same) < 10


@given(domains(), unconstrained, seeds)
def test_encode_is_the_inverse_of_decode(domain: Domain, space: Space, seed: int) -> None:
    drawn = sample(domain, space, 0, 10, seed)
    strategies = [decode(drawn, index, domain) for index in range(len(drawn))]
    again = encode(strategies, domain)
    for name in (*BY_STRATEGY[1:], "first"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(again, name), err_msg=name)
    for name in ("variable", "length", "method", "server", "group", "position"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(again, name), err_msg=name)
    options = [drawn.options[code] for code in drawn.option]
    assert options == [again.options[code] for code in again.option]
    assert [decode(again, index, domain) for index in range(len(again))] == strategies


@given(domains(elementwise=True), spaces, seeds)
def test_load_is_proportional_to_bandwidth_within_one_largest_shard(
    domain: Domain, space: Space, seed: int
) -> None:
    drawn = sample(domain, space, 0, 20, seed)
    nodes = domain.cluster.nodes
    rates = np.array([n.bandwidth_gbps / n.ranks for n in nodes for _ in range(n.ranks)])
    for index in range(len(drawn)):
        rows = slice(drawn.first[index], drawn.first[index + 1])
        owned = drawn.method[rows] == Method.PARAMETER_SERVER
        size = shard_bytes(domain, drawn, index)[owned]
        if not len(size):
            continue
        load = np.bincount(drawn.server[rows][owned], size, minlength=len(rates))
        wanted = size.sum() * rates / rates.sum()
        assert np.abs(load - wanted).max() <= size.max() * (1 + 1e-9)


def shard_bytes(domain: Domain, drawn: Population, index: int) -> np.ndarray:
    """What a replica sends for each shard of a strategy: touched rows only when sparse."""
    rows = range(drawn.first[index], drawn.first[index + 1])
    found = []
    for row in rows:
        variable = domain.graph.variables[drawn.variable[row]]
        axis = drawn.axis[index, drawn.variable[row]]
        span = variable.elements if axis < 0 else variable.shape[axis]
        touched = variable.touched_rows / variable.shape[0] if variable.sparse else 1.0
        found.append(variable.size_bytes * min(1.0, touched) * drawn.length[row] / span)
    return np.array(found)


@given(domains(), spaces, seeds)
def test_groups_are_contiguous_in_gradient_ready_order(
    domain: Domain, space: Space, seed: int
) -> None:
    check_groups(domain, sample(domain, space, 0, 20, seed))


@given(domains(), spaces, seeds)
def test_no_more_groups_than_the_space_allows(domain: Domain, space: Space, seed: int) -> None:
    drawn = sample(domain, space, 0, 20, seed)
    for index in range(len(drawn)):
        rows = slice(drawn.first[index], drawn.first[index + 1])
        method, server = drawn.method[rows], drawn.server[rows]
        sparse = domain.variables.sparse[drawn.variable[rows]]  # never shares with a dense one
        kinds: dict[int, dict[tuple[int, int, bool], set[int]]] = {}
        options, groups = drawn.option[rows], drawn.group[rows]
        for m, o, z, s, g in zip(method, options, sparse, server, groups, strict=True):
            kinds.setdefault(int(s), {}).setdefault((int(m), int(o), bool(z)), set()).add(int(g))
        for family in kinds.values():
            # Rounding shares among the kinds of a family adds at most one group for each of them.
            assert sum(map(len, family.values())) <= space.max_groups + len(family)


def test_groups_of_one_kind_hold_about_equal_bytes() -> None:
    domain = domain_of(chain_graph(((256, 16),) * 60))
    drawn = sample(domain, Space(parameter_server=False, reduce_scatter=False), 0, 200, 3)
    for index in range(len(drawn)):
        rows = slice(drawn.first[index], drawn.first[index + 1])
        assert len(set(drawn.option[rows])) == 1
        sizes = np.bincount(drawn.group[rows], shard_bytes(domain, drawn, index))
        whole_shards = shard_bytes(domain, drawn, index).max()
        assert sizes.max() - sizes.min() <= 2 * whole_shards


def test_every_choice_of_the_space_is_drawn() -> None:
    domain = domain_of(
        chain_graph(((3000, 64), (64,), (512, 64), (128,), (1000, 512)), (0,), 2),
        grid_cluster(2, 2),
    )
    drawn = sample(domain, SMALL, 0, 2000, 0)
    assert set(drawn.method) == {int(method) for method in Method}
    used = {drawn.options[code] for code in set(drawn.option.tolist())}
    assert {option.algorithm for option in used} == {"ring", "tree", "hierarchical"}
    assert any(option.hierarchical for option in used)
    assert any(option.sharded_update for option in used)
    assert set(drawn.order) == {Order.FIFO, Order.PRIORITY}
    assert set(drawn.slice_bytes) == set(SMALL.slice_bytes)
    assert set(drawn.overlap) == {True, False}
    assert {-1, 0, 1} <= set(drawn.axis[:, 2])
    assert set(drawn.axis[drawn.parts[:, 0] > 1, 0]) == {0}, "sparse: axis 0 only"
    assert drawn.parts.max() <= SMALL.max_parts


def test_embeddings_are_cut_along_axis_0_or_into_pieces() -> None:
    graph = chain_graph(((3000, 64), (64, 3000)))
    operations = (replace(graph.operations[0], type="embedding"), graph.operations[1])
    drawn = sample(domain_of(replace(graph, operations=operations)), SMALL, 0, 500, 0)
    assert set(drawn.axis[:, 0]) == {-1, 0}
    assert set(drawn.axis[:, 1]) == {-1, 0, 1}


def linked_cluster() -> Cluster:
    """The nodes' own order crosses the slow link; one of three rings does not."""
    slow = Link(("10.77.0.1", "10.77.0.2"), 0.1)
    return replace(grid_cluster(4), links=(slow,))


def test_rings_are_ordered_where_a_link_has_its_own_rate() -> None:
    domain = domain_of(cluster=linked_cluster())
    drawn = sample(domain, SMALL, 0, 2000, 0)
    orders = {drawn.options[code].device_order for code in set(drawn.option.tolist())}
    around = {order for order in orders if order}
    assert () in orders
    assert around == set(ring_orders(domain)) != set()
    for order in around:
        assert abs(order.index(0) - order.index(1)) == 2, "the slow link is in the ring"
    nccl = domain_of(cluster=replace(linked_cluster(), backend="nccl"))
    assert not any(option.device_order for option in sample(nccl, SMALL, 0, 50, 0).options)
    assert not any(option.device_order for option in sample(domain_of(), SMALL, 0, 50, 0).options)


def test_orders_of_a_ring_take_as_many_exchanges_as_they_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domain = domain_of(cluster=linked_cluster())
    assert len(ring_orders(domain)) > 1
    monkeypatch.setattr(domain_facts, "EXCHANGES", 0)
    assert len(ring_orders(domain)) <= 1, "none is begun after the last exchange"


def methods_of_variables(drawn: Population) -> list[int]:
    """For each cut variable of each strategy, of how many methods and options its shards are."""
    found = []
    for index, (begin, stop) in enumerate(spans(drawn)):
        for variable in np.flatnonzero(drawn.parts[index] > 1):
            rows = begin + np.flatnonzero(drawn.variable[begin:stop] == variable)
            found.append(len(set(zip(drawn.method[rows], drawn.option[rows], strict=True))))
    return found


def test_shards_of_a_variable_differ_where_the_space_lets_them() -> None:
    domain = domain_of(cluster=grid_cluster(2, 2))
    assert max(methods_of_variables(sample(domain, SMALL, 0, 400, 0))) == 1
    drawn = sample(domain, replace(SMALL, shard_methods=True), 0, 400, 0)
    counts = methods_of_variables(drawn)
    assert max(counts) > 2
    assert counts.count(1) > len(counts) / 2, "most strategies keep a method a variable"


def test_variables_differ_in_their_encoding_where_lossy_ones_are_allowed() -> None:
    domain = domain_of()
    drawn = sample(domain, replace(SMALL, encodings=lossy), 0, 400, 0)
    names = [
        {drawn.options[code].encoding.name for code in drawn.option[begin:stop]}
        for begin, stop in spans(drawn)
    ]
    assert max(map(len, names)) >= 3
    assert {"none"} in names


def test_without_load_balance_owners_are_drawn_alike() -> None:
    domain = domain_of(chain_graph(((64, 64),) * 30), grid_cluster(2, 1, (3.0, 1.0)))
    drawn = sample(domain, replace(OWNERS_ONLY, load_balance=False), 0, 200, 0)
    assert 0.45 < np.mean(drawn.server == 0) < 0.55
    loads = [np.mean(drawn.server[begin:stop]) for begin, stop in spans(drawn)]
    assert np.std(loads) > 0.05, "each strategy has its own imbalance"


def test_without_adjacent_merge_messages_hold_shards_from_anywhere() -> None:
    domain = domain_of(chain_graph(((64, 64),) * 40))
    ring = Space(parameter_server=False, reduce_scatter=False, factors=False)
    for merge in (True, False):
        drawn = sample(domain, replace(ring, adjacent_merge=merge), 0, 200, 0)
        several = [g for b, e in spans(drawn) if len(set(g := drawn.group[b:e].tolist())) > 4]
        borders = [sum(a != b for a, b in pairwise(g)) for g in several]
        whole_runs = [n == len(set(g)) - 1 for n, g in zip(borders, several, strict=True)]
        assert len(several) > 50
        assert all(whole_runs) if merge else not any(whole_runs)
        sizes = {len(set(drawn.group[b:e].tolist())) for b, e in spans(drawn)}
        assert max(sizes) <= 20


def test_the_first_pick_follows_bandwidth() -> None:
    domain = domain_of(chain_graph(((64, 64),)), grid_cluster(2, 1, (3.0, 1.0)))
    drawn = sample(domain, Space(all_reduce=False, reduce_scatter=False), 0, 4000, 0)
    assert 0.70 < np.mean(drawn.server == 0) < 0.80


def test_noise_never_breaks_the_balance_of_many_servers() -> None:
    domain = domain_of(chain_graph(((64, 64),) * 40), grid_cluster(8))
    drawn = sample(domain, OWNERS_ONLY, 0, 500, 0)
    for servers in drawn.server.reshape(500, 40):
        assert np.abs(np.bincount(servers, minlength=8) - 5).max() <= 1


def test_large_shards_go_first() -> None:
    """The largest comes last in the graph: placed last it would put 16 units on one server."""
    domain = domain_of(chain_graph((*((64,),) * 64, (32 * 64,))), grid_cluster(2))
    drawn = sample(domain, OWNERS_ONLY, 0, 200, 0)
    for index in range(200):
        rows = slice(drawn.first[index], drawn.first[index + 1])
        load = np.bincount(drawn.server[rows], drawn.length[rows] / 64, minlength=2)
        assert np.abs(load - 48).max() <= 4


def test_a_giant_at_the_end_takes_no_group_from_the_others() -> None:
    domain = domain_of(chain_graph(((1000, 10), (10,), (10,))))
    drawn = sample(domain, Space(parameter_server=False, reduce_scatter=False), 0, 900, 0)
    groups = np.array([drawn.group[first:stop].max() + 1 for first, stop in spans(drawn)])
    assert np.abs(np.bincount(groups, minlength=4)[1:] / 900 - 1 / 3).max() < 0.06


def test_placement_varies_among_equal_servers() -> None:
    domain = domain_of(chain_graph(((64, 64),) * 8), grid_cluster(4))
    drawn = sample(domain, OWNERS_ONLY, 0, 50, 0)
    assert len({tuple(row) for row in drawn.server.reshape(50, 8).tolist()}) > 40


@pytest.mark.parametrize("space", [SMALL, OWNERS_ONLY])
def test_under_an_optimizer_that_is_not_elementwise_owners_return_gradients(space: Space) -> None:
    domain = domain_of(optimizer=Optimizer("lbfgs", elementwise=False))
    drawn = sample(domain, space, 0, 300, 0)
    options = [drawn.options[code] for code in drawn.option]
    owned = drawn.method == Method.PARAMETER_SERVER
    assert owned.any()
    assert all(each.returns_gradients for each, here in zip(options, owned, strict=True) if here)
    assert not any(each.sharded_update for each in options)


def test_owners_return_values_or_gradients_and_say_when() -> None:
    drawn = sample(domain_of(), OWNERS_ONLY, 0, 600, 0)
    returns = np.array([option.returns_gradients for option in drawn.options])[drawn.option]
    each = returns[drawn.first[:-1]]
    assert 0.4 < each.mean() < 0.6
    assert (np.logical_or.reduceat(returns, drawn.first[:-1]) == each).all()
    assert 0.3 < drawn.idle_gather[each & drawn.overlap].mean() < 0.7
    assert not drawn.idle_gather[~each].any()


@pytest.mark.parametrize(
    ("start", "n", "seed"), [(-1, 2, 0), (0, -1, 0), (0, 1, -1), (0, 1, 2**64)]
)
def test_arguments_out_of_range_are_refused(start: int, n: int, seed: int) -> None:
    with pytest.raises(InvalidInput):
        sample(domain_of(), Space(), start, n, seed)


def test_no_proposals_are_an_empty_population() -> None:
    drawn = sample(domain_of(), Space(), 5, 0, 0)
    assert (len(drawn), drawn.rows) == (0, 0)


@given(unconstrained, seeds)
def test_pins_are_kept_exactly(space: Space, seed: int) -> None:
    domain = domain_of()
    pins = (
        VariableChoice(
            "v0",
            split((64, 32), 1, 3),
            (ParameterServer(2, 9), AllReduce(4, device_order=(1, 0, 3, 2)), ParameterServer(2, 9)),
        ),
        VariableChoice("v3", whole((128,)), (AllReduce(4, device_order=(1, 0, 3, 2)),)),
        VariableChoice("v4", pieces((10, 128), 500), (AllReduce(5),) * 3),
    )
    drawn = sample(domain, replace(space, pins=pins), 0, 20, seed)
    for index in range(len(drawn)):
        strategy = decode(drawn, index, domain)
        verify(strategy, domain)
        kept = {choice.variable: choice for choice in strategy.choices}
        numbers: dict[int, set[int]] = {}
        for pin in pins:
            choice = kept.pop(pin.variable)
            assert choice.partition == pin.partition
            for got, wanted in zip(choice.shards, pin.shards, strict=True):
                assert replace(got, group=wanted.group) == wanted
                numbers.setdefault(wanted.group, set()).add(got.group)
        assert all(len(found) == 1 for found in numbers.values())
        pinned = {group for found in numbers.values() for group in found}
        others = {shard.group for choice in kept.values() for shard in choice.shards}
        assert len(pinned) == 3
        assert not pinned & others


def test_a_pin_of_no_variable_is_refused() -> None:
    pin = VariableChoice("v99", whole((4,)), (AllReduce(0),))
    with pytest.raises(InvalidStrategy, match="v99"):
        sample(domain_of(), Space(pins=(pin,)), 0, 1, 0)


@pytest.mark.parametrize("server", [-40_000, -1, 4, 5000])
def test_a_pin_of_an_owner_that_is_no_rank_is_refused(server: int) -> None:
    """Loads of owners are counted in an array of as many places as there are ranks."""
    pin = VariableChoice("v3", whole((128,)), (ParameterServer(server, 0),))
    with pytest.raises(InvalidStrategy, match=f"owner {server}, of ranks 0 to 3"):
        sample(domain_of(), Space(pins=(pin,)), 0, 1, 0)


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        ([VariableChoice("v3", whole((64,)), (AllReduce(0),))], "add up to 64"),
        ([VariableChoice("v3", Partition(7, (128,)), (AllReduce(0),))], "no axis 7"),
        ([VariableChoice("v3", whole((128,)), (AllGather(0),))], "dense gradient"),
        (
            [
                VariableChoice("v3", whole((128,)), (AllReduce(0),)),
                VariableChoice("v5", whole((10,)), (ReduceScatter(0),)),
            ],
            "differs from it in method",
        ),
    ],
)
def test_pins_that_no_strategy_can_have_are_refused(pins: list[VariableChoice], words: str) -> None:
    """A compiled loop would write as many pieces as they have elements, and trials would leave
    elements out."""
    with pytest.raises(InvalidStrategy, match=words):
        sample(domain_of(), Space(pins=tuple(pins)), 0, 1, 0)


def test_pins_are_kept_beside_sparse_gradients() -> None:
    domain = domain_of(chain_graph(((100, 8), (16, 32)), sparse=(0,)))
    pin = VariableChoice("v1", whole((16, 32)), (ReduceScatter(0),))
    drawn = sample(domain, Space(pins=(pin,)), 0, 20, 0)
    for index in range(len(drawn)):
        strategy = decode(drawn, index, domain)
        verify(strategy, domain)
        assert replace(strategy.choices[1].shards[0], group=0) == ReduceScatter(0)


def test_uneven_shares_follow_the_devices_in_whole_samples() -> None:
    nodes = (Node("a", (Device("v100"),), 1.0), Node("b", (Device("v100", slowdown=3.0),), 1.0))
    domain = domain_of(cluster=Cluster("mixed", nodes))
    assert len(sample(domain, Space(), 0, 50, 0).layouts) == 1
    drawn = sample(domain, Space(uneven_shares=True), 0, 50, 0)
    assert [replica.share for replica in drawn.layouts[1]] == [12 / 16, 4 / 16]
    assert set(drawn.layout) == {0, 1}


def test_shares_of_devices_with_and_without_tf32_are_those_of_float32() -> None:
    nodes = (Node("a", (Device("v100"),), 1.0), Node("b", (Device("a100"),), 1.0))
    domain = domain_of(cluster=Cluster("mixed", nodes))
    drawn = sample(domain, Space(uneven_shares=True), 0, 50, 0)
    assert [replica.share for replica in drawn.layouts[1]] == [7 / 16, 9 / 16]


LATER = ("idle_gather", "engine", "ddp", "ddp_arguments", "extension")
"""Columns that came later count where they say something."""


def digest(population: Population) -> str:
    sha = hashlib.sha256()
    for field in fields(Population):
        column = getattr(population, field.name)
        if field.name == "axis":  # behind a column of zeros, when these digests were written
            sha.update(f"staleness uint8 {population.order.shape}".encode())
            sha.update(bytes(len(population)))
        if field.name in LATER and not np.any(column):
            continue
        if isinstance(column, np.ndarray):
            sha.update(f"{field.name} {column.dtype} {column.shape}".encode())
            sha.update(np.ascontiguousarray(column).tobytes())
    return sha.hexdigest()[:16]


EVERYTHING = Space(
    whole_below_bytes=0,
    uneven_shares=True,
    encodings=lossy,
    pins=(
        VariableChoice("v0", split((64, 32), 1, 3), (ParameterServer(2, 9), *[AllReduce(4)] * 2)),
    ),
)


def test_when_halves_are_gathered_is_drawn_beside_all_else() -> None:
    domain = domain_of()
    drawn = sample(domain, replace(SMALL, idle_gathers=True), 0, 400, 0)
    assert 0.3 < drawn.idle_gather[drawn.overlap].mean() < 0.7
    assert not drawn.idle_gather[~drawn.overlap].any()
    usual = sample(domain, SMALL, 0, 400, 0)
    assert 0 < usual.idle_gather.mean() < 0.2  # of owners that return gradients alone
    assert (drawn.idle_gather | ~usual.idle_gather).all()
    drawn.idle_gather[:] = usual.idle_gather
    assert_same(drawn, usual)
    never = replace(SMALL, idle_gathers=True, overlap_forward=False)
    assert not sample(domain, never, 0, 100, 0).idle_gather.any()


@pytest.mark.parametrize(
    ("space", "seed", "expected"),
    [
        (Space(), 0, "8ad2c5a8a902c72d"),
        (SMALL, 7, "781abf906cf9f9f8"),
        (EVERYTHING, 2**64 - 1, "a40f16e0d62e6e36"),
        (Space(whole_below_bytes=0, all_reduce=False, reduce_scatter=False), 3, "76edfcc99e7d9c57"),
    ],
)
def test_a_proposal_is_its_seed_and_index_in_every_version(
    space: Space, seed: int, expected: str
) -> None:
    """Stored tunings name their samples by seed and index, beside the strategies themselves. Where
    the space grows (last: owners that return gradients), what is drawn of it changes, and these."""
    assert digest(sample(domain_of(), space, 1 << 40, 500, seed)) == expected
