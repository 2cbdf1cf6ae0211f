"""Each small edit changes what it says and no more; what comes out verifies and keeps pins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from autosync.codes import Method
from autosync.domain import Domain
from autosync.population import Population, decode, encode
from autosync.search.designs.design_table import hand_designed, lies_in
from autosync.search.designs.known_designs import byteps_least_busy_link
from autosync.search.domain_facts import owner_links
from autosync.search.edits.edited_columns import child_of, columns_of
from autosync.search.edits.message_edits import IDLE, ORDER, OVERLAP, SLICES
from autosync.search.edits.method_edits import busy_seconds
from autosync.search.edits.small_edits import (
    DIVIDE,
    JOIN,
    METHOD,
    OWNER,
    PLACE,
    SHIFT,
    Parents,
    make_edited,
    parents_of,
)
from autosync.search.space import Space
from autosync.strategy import AllReduce, ParameterServer, Strategy, VariableChoice, split, whole
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import domains, seeds, unconstrained
from tests.search.edits.strategies import DOMAIN, SMALL, designs_and_draws
from tests.search.sampler.test_sampling import assert_same

DESIGNS = dict(hand_designed(DOMAIN, Space()))
EVEN = grid_cluster(4, 1)
SLOW_NODE = replace(EVEN.nodes[0], bandwidth_gbps=EVEN.nodes[0].bandwidth_gbps / 4)
UNEVEN = domain_of(
    chain_graph(((700, 640), (64,), (128, 640), (400, 1280), (10,)) * 2),
    replace(EVEN, nodes=(SLOW_NODE, *EVEN.nodes[1:])),
)


def edited(pool: Parents, base: int, kind: int, count: int = 64) -> Population:
    """Children of one parent, one edit of one kind each."""
    of, once = np.full(count, base, dtype=np.int64), np.ones(count, dtype=np.int64)
    return make_edited(pool, of, once, 0, 3, np.array([kind], dtype=np.int64))


def changed(kind: int, name: str, space: Space = SMALL) -> tuple[Strategy, list[Strategy]]:
    """A design as edits leave it, and its different children by one kind."""
    pool = parents_of(DOMAIN, space, encode([DESIGNS[name]], DOMAIN))
    none = np.zeros(1, dtype=np.int64)
    same = decode(make_edited(pool, none, none, 0, 0), 0, DOMAIN)
    children = edited(pool, 0, kind)
    found = [decode(children, index, DOMAIN) for index in range(len(children))]
    for child in found:
        verify(child, DOMAIN)
    return same, [child for child in found if child.id != same.id]


@given(domains(), unconstrained, seeds)
def test_every_child_verifies_and_lies_in_the_space(
    domain: Domain, space: Space, seed: int
) -> None:
    parents = designs_and_draws(domain, space, seed)
    pool = parents_of(domain, space, parents)
    rng = np.random.default_rng(seed)
    base, edits = rng.integers(len(parents), size=24), rng.integers(1, 6, size=24)
    children = make_edited(pool, base, edits, 0, seed % 2**32)
    for index in range(len(children)):
        child = decode(children, index, domain)
        verify(child, domain)
        if lies_in(decode(parents, int(base[index]), domain), space):
            assert lies_in(child, space)
    again = make_edited(pool, base[5:], edits[5:], 5, seed % 2**32)
    assert_same(children.take(np.arange(5, 24)), again)


@pytest.mark.parametrize("kind", [SLICES, OVERLAP, IDLE, ORDER])
def test_an_edit_of_the_schedule_changes_one_field(kind: int) -> None:
    field = {SLICES: "slice_bytes", OVERLAP: "overlap_forward", IDLE: "gather", ORDER: "order"}[
        kind
    ]
    given, children = changed(kind, "byteps")
    assert children
    for child in children:
        assert getattr(child.schedule, field) != getattr(given.schedule, field)
        assert child.choices == given.choices
        kept = replace(given.schedule, **{field: getattr(child.schedule, field)})
        if kind == OVERLAP:
            kept = replace(kept, gather="next_forward")
        assert child.schedule == kept


def test_gathers_wait_for_the_forward_pass_unless_the_space_lets_them_leave() -> None:
    assert changed(IDLE, "dear_sliced")[1] == []
    free = replace(SMALL, idle_gathers=True)
    assert {c.schedule.gather for c in changed(IDLE, "dear_sliced", free)[1]} == {"when_idle"}


def test_a_message_is_sent_before_another() -> None:
    given, children = changed(PLACE, "all_reduce_per_variable")
    assert children
    for child in children:
        assert child.schedule.order == "explicit"
        assert child.choices == given.choices
        assert sorted(child.schedule.positions) == list(range(child.shards))
    fifo = replace(SMALL, priority=False)
    assert changed(PLACE, "all_reduce_per_variable", fifo)[1] == []


def messages(strategy: Strategy) -> int:
    return len({shard.group for choice in strategy.choices for shard in choice.shards})


@pytest.mark.parametrize(("kind", "more"), [(JOIN, -1), (DIVIDE, 1), (SHIFT, 0)])
def test_an_edit_of_borders_changes_groups_alone(kind: int, more: int) -> None:
    grouped = encode([DESIGNS["all_reduce_per_variable"]], DOMAIN)
    grouped.group[:] = [0, 0, 1, 1, 1, 2, 2]
    pool = parents_of(DOMAIN, SMALL, grouped)
    given = decode(grouped, 0, DOMAIN)
    children = edited(pool, 0, kind)
    found = [decode(children, index, DOMAIN) for index in range(len(children))]
    different = [child for child in found if child.canonical() != given.canonical()]
    assert different
    for child in different:
        assert child.schedule == given.schedule
        assert messages(child) == messages(given) + more
        stripped = [replace(shard, group=0) for choice in child.choices for shard in choice.shards]
        assert stripped == [AllReduce(0)] * 7


def test_an_owner_moves_and_no_link_gets_much_busier() -> None:
    """Of a strategy whose owners are balanced by links already, as the design has them."""
    parent = encode([byteps_least_busy_link(UNEVEN)], UNEVEN)
    pool = parents_of(UNEVEN, SMALL, parent)
    none = np.zeros(1, dtype=np.int64)
    kept = make_edited(pool, none, none, 0, 0)
    assert (kept.server == parent.server).all(), "owners by links are not balanced by bandwidth"
    children = edited(pool, 0, OWNER)
    before = busiest(pool, kept, 0)
    for index in range(len(children)):
        child = children.take([index])
        moved = child.server != parent.server
        assert moved.any()
        assert len(np.unique(parent.server[moved])) == len(np.unique(child.server[moved])) == 1
        assert (child.method == parent.method).all()
        assert busiest(pool, child, 0) < 1.5 * before
        verify(decode(child, 0, UNEVEN), UNEVEN)


def busiest(pool: Parents, population: Population, index: int) -> float:
    columns = columns_of(population)
    child = child_of(pool.inputs.tables, columns, index)
    return float(busy_seconds(pool.inputs.tables, owner_links(UNEVEN), columns, child).max())


@pytest.mark.parametrize("name", ["byteps", "dear", "all_reduce_25mb"])
def test_a_method_is_switched_and_cuts_stay(name: str) -> None:
    given, children = changed(METHOD, name)
    kinds = set()
    for child in children:
        assert child.schedule.order == given.schedule.order
        assert [c.partition for c in child.choices] == [c.partition for c in given.choices]
        pairs = [
            (own, other)
            for a, b in zip(child.choices, given.choices, strict=True)
            for own, other in zip(a.shards, b.shards, strict=True)
        ]
        differ = [(a, b) for a, b in pairs if replace(a, group=0) != replace(b, group=0)]
        assert differ
        kinds |= {(a.kind, getattr(a, "returns_gradients", False)) for a, _ in differ}
    assert len(kinds) > 2
    if name == "byteps":
        assert ("parameter_server", False) in kinds, "owners may update, too"


def test_pins_stay() -> None:
    names = [variable.name for variable in DOMAIN.graph.variables]
    halves = split((300, 64), 0, 2)
    pins = (
        VariableChoice(names[0], halves, (ParameterServer(3, 0), ParameterServer(3, 1))),
        VariableChoice(names[3], whole((128,)), (AllReduce(2),)),
        VariableChoice(names[4], whole((10, 128)), (AllReduce(2),)),
    )
    space = replace(SMALL, pins=pins)
    pool = parents_of(DOMAIN, space, designs_and_draws(DOMAIN, space, 1))
    base = np.arange(120) % len(pool)
    children = make_edited(pool, base, np.full(120, 4), 0, 2)
    for index in range(len(children)):
        choices = decode(children, index, DOMAIN).choices
        groups = [{shard.group for shard in choice.shards} for choice in choices]
        assert groups[3] == groups[4]
        assert not groups[3] & (groups[1] | groups[2] | groups[5] | groups[6])
        for place, pin in zip((0, 3, 4), pins, strict=True):
            assert choices[place].partition == pin.partition
            assert [replace(s, group=0) for s in choices[place].shards] == [
                replace(s, group=0) for s in pin.shards
            ]


def test_factors_and_all_reduces_are_switched() -> None:
    linear = domain_of(chain_graph(((512, 256), (512,), (640, 512), (640,)), factor_rows=8))
    designs = dict(hand_designed(linear, Space()))
    pool = parents_of(
        linear, SMALL, encode([designs["factors_all_reduce"], designs["pace"]], linear)
    )
    for parent, begun, other in (
        (0, Method.FACTORS, Method.ALL_REDUCE),
        (1, Method.ALL_REDUCE, Method.FACTORS),
    ):
        first = pool.population.first[parent]
        assert pool.population.method[first] == begun
        children = edited(pool, parent, METHOD, 128)
        assert {int(begun), int(other)} <= set(children.method[children.first[:-1]].tolist())
        for index in range(128):
            verify(decode(children, index, linear), linear)
