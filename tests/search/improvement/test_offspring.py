"""What is made of other strategies runs, keeps pins and both constraints, and changes something."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

from autosync.codes import Method, Order
from autosync.domain import Domain
from autosync.population import Population, concatenate, decode, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.improvement.crossover_mutation import Lineage
from autosync.search.improvement.genetic_algorithm import drawn_lineage, evolve
from autosync.search.improvement.neighbourhood import neighbours_of
from autosync.search.improvement.offspring import fastest, judged_offspring, make_offspring
from autosync.search.improvement.parent_columns import ParentPool, pool_of
from autosync.search.loop.shortlists import parents_among
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, ParameterServer, Schedule, VariableChoice, split, whole
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.search.drawn_domains import domains, seeds, spaces, unconstrained
from tests.search.sampler.test_sampling import assert_same, shard_bytes

SMALL = Space(whole_below_bytes=1000)
DOMAIN = domain_of(
    chain_graph(((300, 64), (64,), (128, 64), (128,), (10, 128), (1000, 48), (10,))),
    grid_cluster(2, 2),
)


def parents_of(domain: Domain, space: Space, seed: int, drawn: int = 6) -> Population:
    designs = [strategy for _, strategy in hand_designed(domain, space)]
    return parents_among(
        domain, concatenate([sample(domain, space, 0, drawn, seed), encode(designs, domain)])
    )


def children_of(pool: ParentPool, count: int, seed: int) -> tuple[Lineage, Population]:
    lineage = drawn_lineage(pool, count, np.random.default_rng(seed))
    return lineage, make_offspring(pool, lineage, 0, seed)


def unchanged(pool: ParentPool) -> Population:
    """Children without a mate or an edit, one of each parent."""
    n = pool.parents
    none = np.zeros(n, dtype=np.int64)
    return make_offspring(pool, Lineage(np.arange(n), none - 1, none + n, none), 0, 0)


@settings(deadline=None, max_examples=40)
@given(domains(), unconstrained, seeds)
def test_every_child_verifies(domain: Domain, space: Space, seed: int) -> None:
    pool = pool_of(domain, space, parents_of(domain, space, seed), 8, seed)
    _, children = children_of(pool, 24, seed % 2**32)
    for index in range(len(children)):
        verify(decode(children, index, domain), domain)


@settings(deadline=None, max_examples=30)
@given(domains(elementwise=True), spaces, seeds)
def test_both_constraints_hold(domain: Domain, space: Space, seed: int) -> None:
    """Loads within the largest shard of the bandwidth's part, though some designs break that; and
    groups contiguous in gradient-ready order."""
    pool = pool_of(domain, space, parents_of(domain, space, seed), 8, seed)
    _, children = children_of(pool, 24, seed % 2**32)
    rates = server_rates(domain)
    ready = domain.variables.ready
    for index in range(len(children)):
        rows = np.arange(children.first[index], children.first[index + 1])
        owned = children.method[rows] == Method.PARAMETER_SERVER
        size = shard_bytes(domain, children, index)[owned]
        if len(size):
            load = np.bincount(children.server[rows][owned], size, minlength=len(rates))
            wanted = size.sum() * rates / rates.sum()
            assert np.abs(load - wanted).max() <= size.max() * (1 + 1e-9)
        order = rows[np.lexsort((rows, ready[children.variable[rows]]))]
        last: dict[tuple[int, ...], int] = {}
        seen: dict[int, tuple[int, ...]] = {}
        for row in order:
            sparse = bool(domain.variables.sparse[children.variable[row]])
            columns = (children.method[row], children.option[row], children.server[row], sparse)
            kind, group = tuple(int(value) for value in columns), int(children.group[row])
            if last.get(kind) != group:
                assert group not in seen, "a group is interrupted, or spans kinds"
                seen[group] = kind
            last[kind] = group
        assert set(seen) == set(range(len(seen)))


@settings(deadline=None, max_examples=30)
@given(domains(), unconstrained, seeds)
def test_a_child_without_changes_is_its_parent(domain: Domain, space: Space, seed: int) -> None:
    """But under load balance for parents whose servers hold more beyond their parts, in all, than
    the largest shard: the sampler bounds what each holds beyond."""
    parents = sample(domain, space, 0, 12, seed)
    pool = pool_of(domain, space, parents, 1, seed)
    free = not space.load_balance
    kept = [i for i in range(12) if free or not overloaded(domain, pool.population, i)]
    rows = np.array(kept, dtype=np.int64)
    assert_same(unchanged(pool).take(rows), pool.population.take(rows))


def overloaded(domain: Domain, population: Population, index: int) -> bool:
    rows = np.arange(population.first[index], population.first[index + 1])
    owned = population.method[rows] == Method.PARAMETER_SERVER
    size = shard_bytes(domain, population, index)[owned]
    rates = server_rates(domain)
    load = np.bincount(population.server[rows][owned], size, minlength=len(rates))
    beyond = np.maximum(load - size.sum() * rates / rates.sum(), 0.0).sum()
    return bool(beyond > size.max(initial=0.0) * (1 - 1e-9))


def server_rates(domain: Domain) -> NDArray[np.float64]:
    """Each rank's part of its node's rate."""
    nodes = domain.cluster.nodes
    return np.array([n.bandwidth_gbps / n.ranks for n in nodes for _ in range(n.ranks)])


def test_a_design_without_changes_stays_itself() -> None:
    """But for those whose owners or groups are not as the constraints want them."""
    designs = [strategy for _, strategy in hand_designed(DOMAIN, Space())]
    parents = parents_among(DOMAIN, encode(designs, DOMAIN))
    copies = unchanged(pool_of(DOMAIN, Space(), parents, 1, 0))
    same = [decode(copies, i, DOMAIN) == decode(parents, i, DOMAIN) for i in range(len(parents))]
    assert sum(same) >= 0.8 * len(designs)


def test_a_mate_gives_a_span_of_the_gradient_ready_order() -> None:
    parents = sample(DOMAIN, replace(SMALL, parameter_server=False), 0, 40, 3)
    pool = pool_of(DOMAIN, SMALL, parents, 1, 3)
    n = 200
    none = np.zeros(n, dtype=np.int64)
    lineage = Lineage(np.arange(n) % 40, (np.arange(n) + 7) % 40, none + 40, none)
    children = make_offspring(pool, lineage, 0, 5)
    lengths = set()
    for index in range(n):
        base, mate = int(lineage.base[index]), int(lineage.mate[index])
        from_mate = []
        for variable in DOMAIN.graph.gradient_order:
            own, first, second = (
                choice_at(population, place, variable)
                for population, place in ((children, index), (parents, base), (parents, mate))
            )
            assert own in (first, second)
            from_mate.append(None if first == second else own == second)
        known = [each for each in from_mate if each is not None]
        assert sum(a != b for a, b in zip([False, *known], [*known, False], strict=True)) <= 2
        lengths.add(sum(known))
    assert len(lengths) > 3


def choice_at(population: Population, index: int, variable: int) -> tuple[object, ...]:
    """How a variable is cut and synchronized, without its groups."""
    choice = decode(population, index, DOMAIN).choices[variable]
    return choice.partition, tuple(replace(shard, group=0) for shard in choice.shards)


def test_pins_stay() -> None:
    names = [variable.name for variable in DOMAIN.graph.variables]
    halves = split((300, 64), 0, 2)
    pins = (
        VariableChoice(names[0], halves, (ParameterServer(3, 0), ParameterServer(3, 1))),
        VariableChoice(names[3], whole((128,)), (AllReduce(2),)),
        VariableChoice(names[4], whole((10, 128)), (AllReduce(2),)),
    )
    space = replace(SMALL, pins=pins)
    pool = pool_of(DOMAIN, space, parents_of(DOMAIN, space, 1), 8, 1)
    _, children = children_of(pool, 100, 2)
    for index in range(len(children)):
        choices = decode(children, index, DOMAIN).choices
        groups = [{shard.group for shard in choice.shards} for choice in choices]
        assert groups[3] == groups[4]
        assert len(groups[3] & (groups[1] | groups[2] | groups[5] | groups[6])) == 0
        for pin in pins:
            choice = next(each for each in choices if each.variable == pin.variable)
            assert choice.partition == pin.partition
            assert [replace(s, group=0) for s in choice.shards] == [
                replace(s, group=0) for s in pin.shards
            ]


def test_an_explicit_order_stays_one() -> None:
    """The variables' order is the base's; what is cut anew is sent in its place."""
    drawn = sample(DOMAIN, SMALL, 0, 20, 4)
    explicit = [
        replace(
            strategy,
            schedule=Schedule(
                order="explicit",
                overlap_forward=strategy.schedule.overlap_forward,
                positions=tuple(reversed(range(strategy.shards))),
            ),
        )
        for strategy in (decode(drawn, index, DOMAIN) for index in range(20))
    ]
    pool = pool_of(DOMAIN, SMALL, encode(explicit, DOMAIN), 16, 4)
    copies = unchanged(pool)
    assert [decode(copies, i, DOMAIN).schedule for i in range(20)] == [
        strategy.schedule for strategy in explicit
    ]
    _, children = children_of(pool, 100, 5)
    assert set(children.order) > {Order.EXPLICIT}
    for index in range(100):
        verify(decode(children, index, DOMAIN), DOMAIN)


def test_children_do_not_depend_on_chunks_or_threads() -> None:
    pool = pool_of(DOMAIN, SMALL, parents_of(DOMAIN, SMALL, 0), 16, 0)
    lineage = drawn_lineage(pool, 1100, np.random.default_rng(0))

    def predict(population: Population) -> np.ndarray:
        return np.arange(len(population), dtype=np.float64)

    one = list(judged_offspring(pool, lineage, 9, predict, 2000, threads=1))
    three = list(judged_offspring(pool, lineage, 9, predict, 2000, threads=3))
    assert [len(each) for each, _ in one] == [512, 512, 76]
    for (left, _), (right, _) in zip(one, three, strict=True):
        assert_same(left, right)
    alone = make_offspring(pool, Lineage(*(column[512:] for column in lineage)), 512, 9)
    assert_same(alone.take(np.arange(512)), one[1][0])


def test_every_kind_of_edit_happens() -> None:
    """One parent, and one edit a child: the choices, the schedule, the borders or the owners."""
    strategies = dict(hand_designed(DOMAIN, Space()))
    parent = encode([strategies["ps_pieces_4mb_priority"]], DOMAIN)
    pool = pool_of(DOMAIN, SMALL, parent, 32, 0)
    n = 400
    none = np.zeros(n, dtype=np.int64)
    lineage = Lineage(none, none - 1, 1 + np.arange(n) % 32, none + 1)
    children = make_offspring(pool, lineage, 0, 0)
    given = strategies["ps_pieces_4mb_priority"]
    kinds = set()
    for index in range(n):
        child = decode(children, index, DOMAIN)
        if child.schedule != given.schedule:
            kinds.add("schedule")
        elif [choice_at(children, index, v) for v in range(7)] == [
            choice_at(parent, 0, v) for v in range(7)
        ]:
            kinds.add("borders" if child.id != given.id else "nothing")
        elif (children.method[children.first[index] : children.first[index + 1]] == 0).all():
            kinds.add("owners")
        else:
            kinds.add("choices")
    assert kinds >= {"schedule", "borders", "owners", "choices"}


def test_a_genetic_search_and_neighbours_improve_what_they_begin_with() -> None:
    def predict(population: Population) -> np.ndarray:
        return TimelineSimulator().predict(DOMAIN, population)

    first = sample(DOMAIN, SMALL, 0, 64, 0)
    begun = predict(first)
    population, seconds = evolve(DOMAIN, SMALL, first, predict, 1500, 0)
    again, _ = evolve(DOMAIN, SMALL, first, predict, 1500, 0, threads=1)
    assert_same(population, again)
    np.testing.assert_array_equal(predict(population), seconds)
    assert (np.diff(seconds) > 0).all()
    random = sample(DOMAIN, SMALL, 64, 1500, 0)
    of_random = fastest(random, predict(random), 32)[1]
    assert seconds[0] <= begun.min()
    assert seconds[:32].mean() < of_random.mean(), "as many random draws find as much"
    best, of_best = fastest(first, begun, 4)
    near, of_near = neighbours_of(DOMAIN, SMALL, best.take([3]), predict, 600, 1, 32)
    assert of_near[0] < of_best[3]
    assert len(near) == len(of_near) == 32


def test_what_cannot_run_is_left_out_and_equal_seconds_stand_once() -> None:
    drawn = sample(DOMAIN, SMALL, 0, 6, 0)
    kept, seconds = fastest(drawn, np.array([3.0, np.inf, 1.0, np.nan, 3.0, 2.0]), 8)
    assert seconds.tolist() == [1.0, 2.0, 3.0]
    assert_same(kept, drawn.take([2, 5, 0]))


def test_ddp_and_owners_beside_the_training_ranks_are_no_parents() -> None:
    strategies = dict(hand_designed(DOMAIN, Space()))
    population = encode(
        [strategies["ddp"], strategies["dear"], strategies["ps_load_balanced"]], DOMAIN
    )
    assert_same(parents_among(DOMAIN, population), population.take([1, 2]))
    population.server[population.first[2]] = DOMAIN.world_size
    assert_same(parents_among(DOMAIN, population), population.take([1]))
    assert len(parents_among(DOMAIN, population.take([]))) == 0
