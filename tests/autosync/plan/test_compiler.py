"""Plans worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Backend, Cluster, Device, Node
from autosync.codes import POWERSGD, Channel, Op, Update
from autosync.domain import Domain
from autosync.plan import Plan, PlanTable, compile_plans, plan_of
from autosync.plan.bucket_cutting import (
    FACTOR_BYTES,
    encoded_bytes,
    low_rank_gains,
    second_factor_bytes,
)
from autosync.plan.compiler_arrays import crossed_bytes_per_second
from autosync.population import encode
from autosync.search.designs.known_designs import dear
from autosync.search.designs.torch_engines import fsdp2, hsdp, zero2
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import (
    AllGather,
    AllReduce,
    Encoding,
    Factors,
    OrderName,
    ParameterServer,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from tests.domains import chain_graph, domain_of, grid_cluster, layered_graph


def strategy_of(
    domain: Domain, *shards: Synchronizer, schedule: Schedule | None = None
) -> Strategy:
    """Every variable whole; variable i takes shards[i], the last one serves the rest."""
    choices = tuple(
        VariableChoice(v.name, whole(v.shape), (shards[min(i, len(shards) - 1)],))
        for i, v in enumerate(domain.graph.variables)
    )
    return Strategy(choices, even_replicas(domain.world_size), schedule or Schedule())


def compiled(strategy: Strategy, domain: Domain) -> Plan:
    population = encode([strategy], domain)
    return plan_of(compile_plans(population, domain), population, 0, domain)


def both_ways(strategy: Strategy, domain: Domain) -> tuple[Plan, Plan]:
    """As training processes compile it, and as populations are compiled."""
    population = encode([strategy], domain)
    fast = plan_of(compile_plans_fast(population, domain), population, 0, domain)
    return compiled(strategy, domain), fast


def covered_elements(plan: Plan, domain: Domain) -> list[int]:
    """How many elements of each variable the buckets hold, each counted once."""
    counts = [0] * len(domain.graph.variables)
    for bucket in plan.buckets:
        for piece in bucket:
            counts[plan.shards[piece.shard].variable] += piece.stop - piece.start
    return counts


def test_a_group_waits_for_its_last_gradient_and_is_sent_in_ready_order() -> None:
    domain = domain_of()
    early, late = AllReduce(7), AllReduce(3)
    plan = compiled(strategy_of(domain, late, late, late, early), domain)
    # Variables 3..5 are ready first (positions 0..2), then 2, 1, 0.
    assert [m.ready for m in plan.messages] == [2, 5]
    assert [m.operation for m in plan.messages] == [Op.ALL_REDUCE] * 2
    assert [plan.shards[p.shard].variable for p in plan.buckets[plan.messages[0].bucket]] == [
        5,
        4,
        3,
    ]
    assert plan.messages[0].wire_bytes == 4 * (10 + 10 * 128 + 128)
    assert all(m.gate == -1 and m.update == Update.REPLICATED for m in plan.messages)


def test_slices_tile_the_group_and_carry_their_own_readiness() -> None:
    domain = domain_of()
    schedule = Schedule("priority", slice_bytes=4096, overlap_forward=True)
    plan = compiled(strategy_of(domain, AllReduce(0), schedule=schedule), domain)
    assert covered_elements(plan, domain) == [v.elements for v in domain.graph.variables]
    sizes = sorted(m.wire_bytes for m in plan.messages)
    assert sizes[1:] == [4096] * (len(sizes) - 1)
    assert sum(sizes) == domain.graph.size_bytes
    ready = {m.bucket: m.ready for m in plan.messages}
    assert ready[0] < ready[len(plan.buckets) - 1] == 5


def test_slices_have_room_where_types_are_mixed() -> None:
    """Six bytes hold one float32, or three bfloat16."""
    graph = chain_graph(((100,), (3,)))
    narrow = replace(graph.variables[1], dtype="bfloat16")
    domain = domain_of(replace(graph, variables=(graph.variables[0], narrow)))
    strategy = strategy_of(domain, AllReduce(0), AllReduce(1), schedule=Schedule(slice_bytes=6))
    plan = compiled(strategy, domain)
    assert [m.wire_bytes for m in plan.messages] == [6] + [4] * 100


def test_priority_sends_the_nearest_next_use_first_once_it_is_ready() -> None:
    slow = grid_cluster(4, gbps=0.001)
    domain = domain_of(cluster=slow)
    schedule = Schedule("priority", overlap_forward=True)
    shards = [AllReduce(i) for i in range(6)]
    plan = compiled(strategy_of(domain, *shards, schedule=schedule), domain)
    variables = [plan.shards[plan.buckets[m.bucket][0].shard].variable for m in plan.messages]
    # Variable 4 is next in ready order when the tiny 5 is through; then all the others wait.
    assert variables == [5, 4, 0, 1, 2, 3]
    assert [m.gate for m in plan.messages] == variables


def test_the_wire_of_a_list_schedule_is_the_link_that_messages_cross() -> None:
    node = Node("a", (Device("cpu", 4),), bandwidth_gbps=0.01, intra_bandwidth_gbps=80.0)
    inside = Cluster("one node", (node,))
    served = replace(inside, nodes=(node, Node("b", (), 8.0, server_only=True)))
    assert crossed_bytes_per_second(inside) == pytest.approx([1e10] * 5)
    assert crossed_bytes_per_second(served) == pytest.approx([1e10] * 5 + [1.25e6])
    assert crossed_bytes_per_second(grid_cluster(3, 1, (8.0, 0.8, 8.0))) == pytest.approx([1e8] * 4)

    def sent(cluster: Cluster) -> list[int]:
        domain = domain_of(cluster=cluster)
        schedule = Schedule("priority", overlap_forward=True)
        strategy = strategy_of(domain, *(AllReduce(i) for i in range(6)), schedule=schedule)
        return [int(ready) for ready in compile_plans(encode([strategy], domain), domain).ready]

    # messages that are through before the next gradient is there go as gradients come
    assert sent(inside) == list(range(6))
    assert sent(grid_cluster(4, 1, 0.01)) != list(range(6))


def test_a_parameter_server_pulls_only_after_the_owner_updated() -> None:
    domain = domain_of()
    plan = compiled(strategy_of(domain, ParameterServer(2, 0), ParameterServer(1, 1)), domain)
    pushes, pulls = plan.messages[:2], plan.messages[2:]
    assert [m.operation for m in pushes] == [Op.PUSH] * 2
    assert [m.update for m in pushes] == [Update.OWNER] * 2
    assert [(m.operation, m.channel) for m in pulls] == [(Op.PULL, Channel.PULL)] * 2
    assert [m.after for m in pulls] == [0, 1]
    assert [m.root for m in plan.messages] == [1, 2, 1, 2]


RETURNS = ParameterServer(2, 0, returns_gradients=True)


def test_gradients_that_an_owner_returns_wait_for_no_step() -> None:
    domain = domain_of()
    other = replace(RETURNS, server=1, group=1)
    plan = compiled(strategy_of(domain, RETURNS, other), domain)
    operations = [m.operation for m in plan.messages]
    assert operations == [Op.PUSH, Op.PULL, Op.PUSH, Op.PULL]  # each behind its own push
    assert [m.update for m in plan.messages] == [Update.NONE, Update.REPLICATED] * 2
    assert not any(m.carries_values for m in plan.messages)
    grouped = domain_of(cluster=grid_cluster(2, 2))
    shard = replace(RETURNS, hierarchical=True)
    inside = compiled(strategy_of(grouped, shard), grouped).messages
    assert [m.operation for m in inside] == [Op.REDUCE, Op.PUSH, Op.PULL, Op.BROADCAST]
    assert [m.update for m in inside] == [Update.NONE] * 3 + [Update.REPLICATED]


def test_the_schedule_says_when_an_owner_returns_gradients() -> None:
    domain = domain_of()
    shards = [replace(RETURNS, server=i % 4, group=i) for i in range(6)]
    gates = {}
    for gather in ("next_forward", "when_idle"):
        schedule = Schedule("fifo", overlap_forward=True, gather=gather)
        plan = compiled(strategy_of(domain, *shards, schedule=schedule), domain)
        assert [m.operation for m in plan.messages] == [Op.PUSH] * 6 + [Op.PULL] * 6
        gates[gather] = [m.gate for m in plan.messages[6:]]
        assert sorted(gates[gather]) == list(range(6))
    assert gates["when_idle"] != gates["next_forward"]


def test_returned_gradients_and_idle_gathers_lose_no_message_of_each_other() -> None:
    """Some buckets return, some are gathered, some wait for the step, and some have one message."""
    domain = domain_of()
    mixed = (RETURNS, ReduceScatter(1), ParameterServer(1, 2), AllReduce(3), ReduceScatter(4, True))
    for order in ("fifo", "priority", "explicit"):
        places = tuple(reversed(range(6))) if order == "explicit" else ()
        schedule = Schedule(order, 0, True, places, "when_idle")
        shards = (*mixed, replace(RETURNS, server=3, group=5))
        plan = compiled(strategy_of(domain, *shards, schedule=schedule), domain)
        counts = [sum(m.bucket == b for m in plan.messages) for b in range(len(plan.buckets))]
        assert sorted(counts) == [1, 2, 2, 2, 2, 2]


def test_hierarchy_reduces_inside_nodes_and_crosses_between_leaders() -> None:
    domain = domain_of(cluster=grid_cluster(2, 2))
    plan = compiled(strategy_of(domain, AllReduce(0, "hierarchical")), domain)
    assert [m.operation for m in plan.messages] == [Op.REDUCE, Op.ALL_REDUCE, Op.BROADCAST]
    assert [plan.teams[m.teams] for m in plan.messages] == [
        ((0, 1), (2, 3)),
        ((0, 2),),
        ((0, 1), (2, 3)),
    ]
    assert [m.after for m in plan.messages] == [-1, 0, 1]
    owned = compiled(strategy_of(domain, ParameterServer(3, 0, True)), domain)
    assert [m.operation for m in owned.messages] == [Op.REDUCE, Op.PUSH, Op.PULL, Op.BROADCAST]
    assert owned.teams[owned.messages[1].teams] == ((0, 3),)


def test_hierarchy_on_single_device_nodes_is_a_plain_all_reduce() -> None:
    domain = domain_of()
    plan = compiled(strategy_of(domain, AllReduce(0, "hierarchical")), domain)
    assert [m.operation for m in plan.messages] == [Op.ALL_REDUCE]


@pytest.mark.parametrize("sharded", [False, True])
def test_reduce_scatter_defers_its_all_gather_to_the_next_use(sharded: bool) -> None:
    domain = domain_of()
    shards = [ReduceScatter(i // 2, sharded) for i in range(6)]
    schedule = Schedule("fifo", overlap_forward=True)
    plan = compiled(strategy_of(domain, *shards, schedule=schedule), domain)
    assert [m.operation for m in plan.messages] == [Op.REDUCE_SCATTER] * 3 + [Op.ALL_GATHER] * 3
    assert [m.channel for m in plan.messages] == [Channel.GRADIENT] * 3 + [Channel.VALUE] * 3
    # When backward ends, the first half of the group used first is still on its way: the next
    # one in order of use fills the wire meanwhile.
    assert [m.gate for m in plan.messages] == [4, 2, 0, 2, 0, 4]
    updates = [m.update for m in plan.messages]
    if sharded:
        assert updates == [Update.SHARD] * 3 + [Update.NONE] * 3
    else:
        assert updates == [Update.NONE] * 3 + [Update.REPLICATED] * 3


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("backend", "gates"), [("gloo", [2, 0, 4]), ("nccl", [0, 2, 4])])
def test_behind_the_last_reduction_values_leave_in_the_order_of_their_use(
    sharded: bool, backend: Backend, gates: list[int]
) -> None:
    """Where a rank runs all messages one after another, none leaves before that one is through."""
    domain = domain_of(cluster=replace(grid_cluster(), backend=backend))
    shards = [ReduceScatter(i // 2, sharded) for i in range(6)]
    schedule = Schedule("fifo", overlap_forward=True)
    for plan in both_ways(strategy_of(domain, *shards, schedule=schedule), domain):
        assert [m.operation for m in plan.messages[:3]] == [Op.REDUCE_SCATTER] * 3
        assert [m.gate for m in plan.messages[3:]] == gates


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_values_that_leave_when_idle_wait_for_all_reductions_and_leave_in_the_order_of_their_use(
    order: OrderName, backend: Backend
) -> None:
    """Also on a link that is still busy with the first reduction when backward ends."""
    for gbps in (0.956, 0.0001):
        domain = domain_of(cluster=replace(grid_cluster(gbps=gbps), backend=backend))
        shards = [ReduceScatter(i, True) for i in range(6)]
        schedule = Schedule(order, 0, True, gather="when_idle")
        for plan in both_ways(strategy_of(domain, *shards, schedule=schedule), domain):
            operations = [m.operation for m in plan.messages]
            assert operations == [Op.REDUCE_SCATTER] * 6 + [Op.ALL_GATHER] * 6
            assert [m.gate for m in plan.messages[6:]] == list(range(6))


@pytest.mark.parametrize(("backend", "sent"), [("gloo", [2, 1, 0]), ("nccl", [2, 0, 1])])
def test_a_push_is_a_chain_over_the_slowest_link_on_nccl(backend: Backend, sent: list[int]) -> None:
    """Gradients are there after 2, 4 and 6 ms. A whole one takes 4.6 ms on the link, the three
    quarters of one that reach an owner 3.4."""
    cluster = replace(grid_cluster(4, gbps=0.007), backend=backend)
    domain = domain_of(chain_graph(((1000,),) * 3), cluster)
    owned = [ParameterServer(0, group) for group in range(3)]
    schedule = Schedule("priority", overlap_forward=True)
    for plan in both_ways(strategy_of(domain, *owned, schedule=schedule), domain):
        assert [m.gate for m in plan.messages if m.operation == Op.PUSH] == sent


def test_sparse_messages_carry_touched_rows_and_factors_carry_factors() -> None:
    domain = domain_of(chain_graph(((100, 8), (16, 32)), sparse=(0,), factor_rows=5))
    plan = compiled(strategy_of(domain, AllGather(0), Factors(1)), domain)
    factors, rows = plan.messages
    assert factors.operation == Op.FACTOR_ALL_GATHER
    assert factors.wire_bytes == 5 * (16 + 32) * 4
    assert rows.operation == Op.SPARSE_ALL_GATHER
    assert rows.wire_bytes == 2 * (8 * 4 + 8)
    owned = compiled(strategy_of(domain, ParameterServer(0, 0), Factors(1)), domain)
    pull = owned.messages[-1]
    assert pull.operation == Op.SPARSE_PULL
    assert pull.wire_bytes == 4 * rows.wire_bytes  # four replicas touch at most 8 rows


def test_an_owner_returns_the_rows_of_every_shard_that_it_was_sent() -> None:
    """Four replicas touch two rows of each table: eight of a hundred, and all that a table of three
    has. A shard of two rows returns both at most."""
    row_bytes = 8 * 4 + 8
    tables = domain_of(chain_graph(((100, 8), (3, 8)), sparse=(0, 1)))
    together = compiled(strategy_of(tables, ParameterServer(0, 0)), tables)
    assert [m.operation for m in together.messages] == [Op.SPARSE_PUSH, Op.SPARSE_PULL]
    assert [m.wire_bytes for m in together.messages] == [4 * row_bytes, (8 + 3) * row_bytes]
    table = domain_of(chain_graph(((100, 8),), sparse=(0,)))
    shards = tuple(ParameterServer(0, group) for group in range(50))
    choice = VariableChoice("v0", split((100, 8), 0, 50), shards)
    cut = compiled(Strategy((choice,), even_replicas(4)), table)
    pulls = [m.wire_bytes for m in cut.messages if m.operation == Op.SPARSE_PULL]
    assert pulls == [2 * row_bytes] * 50


def test_encodings_shrink_gradients_but_values_travel_whole() -> None:
    domain = domain_of()
    half = Encoding("fp16")
    plan = compiled(strategy_of(domain, ParameterServer(0, 0, encoding=half)), domain)
    assert [m.wire_bytes for m in plan.messages] == [
        domain.graph.size_bytes // 2,
        domain.graph.size_bytes,
    ]
    assert [m.encoding for m in plan.messages] == [1, 0]


def test_encodings_shrink_touched_rows_but_neither_their_indices_nor_new_values() -> None:
    domain = domain_of(chain_graph(((100, 8),), sparse=(0,)))
    half = ParameterServer(0, 0, encoding=Encoding("fp16"))
    plan = compiled(strategy_of(domain, half), domain)
    assert [m.wire_bytes for m in plan.messages] == [2 * (8 * 2 + 8), 4 * 2 * (8 * 4 + 8)]


def test_powersgd_sends_its_second_factor_after_its_first() -> None:
    """Rank 2 of 64 x 32: P is 2 x 64 floats, Q 2 x 32. An 8 x 2 matrix gains nothing and travels
    with P: 2 (8 + 2) is more than 16."""
    domain = domain_of(chain_graph(((64, 32), (8, 2))))
    low = Encoding("powersgd", 2)
    together = compiled(
        strategy_of(domain, AllReduce(0, encoding=low), AllReduce(0, encoding=low)), domain
    )
    first, second = together.messages
    assert [m.operation for m in (first, second)] == [Op.ALL_REDUCE] * 2
    assert [m.channel for m in (first, second)] == [Channel.GRADIENT, Channel.VALUE]
    assert [m.wire_bytes for m in (first, second)] == [2 * 64 * 4 + 16 * 4, 2 * 32 * 4]
    assert [m.update for m in (first, second)] == [Update.NONE, Update.REPLICATED]
    assert (first.after, second.after) == (-1, 0)
    assert (first.encoding, second.encoding) == (POWERSGD + 2, POWERSGD + 2)
    apart = compiled(
        strategy_of(domain, AllReduce(0, encoding=low), AllReduce(1, encoding=low)), domain
    )
    assert sorted(m.wire_bytes for m in apart.messages) == [16 * 4, 2 * 32 * 4, 2 * 64 * 4]


def test_powersgd_counts_its_factors_in_float32() -> None:
    graph = chain_graph(((64, 32),))
    narrow = replace(graph, variables=(replace(graph.variables[0], dtype="bfloat16"),))
    domain = domain_of(narrow)
    plan = compiled(strategy_of(domain, AllReduce(0, encoding=Encoding("powersgd", 2))), domain)
    assert [m.wire_bytes for m in plan.messages] == [2 * 64 * 4, 2 * 32 * 4]


def test_explicit_positions_are_executed_as_given() -> None:
    domain = domain_of()
    shards = [AllReduce(i) for i in range(6)]
    schedule = Schedule("explicit", positions=(1, 0, 5, 2, 4, 3))
    plan = compiled(strategy_of(domain, *shards, schedule=schedule), domain)
    variables = [plan.shards[plan.buckets[m.bucket][0].shard].variable for m in plan.messages]
    assert variables == [1, 0, 3, 5, 4, 2]


def test_every_message_comes_after_what_it_waits_for() -> None:
    domain = domain_of(cluster=grid_cluster(2, 2))
    choices = tuple(
        VariableChoice(
            v.name,
            split(v.shape, 0, 2),
            (ParameterServer(i % 4, i, True), ReduceScatter(6 + i, True)),
        )
        for i, v in enumerate(domain.graph.variables)
    )
    base = Strategy(choices, even_replicas(4))
    for order in ("fifo", "priority"):
        for slice_bytes in (0, 1000, 5000):
            for overlap in (False, True):
                schedule = Schedule(order, slice_bytes, overlap)
                plan = compiled(replace(base, schedule=schedule), domain)
                assert all(m.after < i for i, m in enumerate(plan.messages))
                assert all((m.ready >= 0) == (m.after < 0) for m in plan.messages)
                assert covered_elements(plan, domain) == [
                    v.elements for v in domain.graph.variables
                ]


def test_a_population_compiles_as_its_strategies_do_alone() -> None:
    domain = domain_of(cluster=grid_cluster(2, 2))
    strategies = [
        strategy_of(domain, AllReduce(0), schedule=Schedule("priority", 3000, True)),
        strategy_of(domain, ParameterServer(1, 0), AllReduce(1, "tree")),
        strategy_of(domain, ReduceScatter(0), ParameterServer(3, 1, True)),
    ]
    together = encode(strategies, domain)
    plans = compile_plans(together, domain)
    assert isinstance(plans, PlanTable)
    for index, strategy in enumerate(strategies):
        assert plan_of(plans, together, index, domain) == compiled(strategy, domain)


def test_an_empty_population_has_an_empty_table() -> None:
    domain = domain_of()
    plans = compile_plans(encode([], domain), domain)
    assert len(plans) == 0
    assert plans.messages == 0
    assert np.array_equal(plans.first, [0])


@pytest.mark.parametrize(
    ("rows", "columns", "rank", "gains"),
    [(10, 12, 5, True), (10, 12, 6, False), (4, 4, 2, False), (4, 4, 1, True), (1, 12, 1, False)],
)
def test_factors_travel_where_they_are_smaller(
    rows: int, columns: int, rank: int, gains: bool
) -> None:
    """As large as the matrix is not smaller."""
    elements, encoding = rows * columns, POWERSGD + rank
    assert low_rank_gains(elements, rows, rank) == gains
    travels = rank * (rows + columns) if gains else elements
    assert encoded_bytes(elements, 4, rows, encoding) == travels * FACTOR_BYTES
    second = rank * columns * FACTOR_BYTES if gains else 0
    assert second_factor_bytes(elements, rows, encoding) == second


DOMAIN = domain_of(layered_graph(((100, 10),) * 5), grid_cluster(2, 2))
UNIT, ROOT = 4000, 8000


def rows(strategy: Strategy) -> list[tuple[Op, int, int, int, int]]:
    """Operation, bytes, gradient that it waits for, gradient or operation that waits for it."""
    made = compiled(strategy, DOMAIN)
    return [(m.operation, m.wire_bytes, m.ready, m.before, m.gate) for m in made.messages]


def test_zero3_gathers_every_unit_again_for_its_backward() -> None:
    gather, reduce = Op.ALL_GATHER, Op.REDUCE_SCATTER
    # Gradients get ready in the order last, layers.2, layers.1, layers.0, first.
    assert rows(fsdp2(DOMAIN)) == [
        (reduce, ROOT, 4, -1, -1),  # the root begins the backward pass and ends it
        (gather, UNIT, -1, 1, -1),
        (reduce, UNIT, 1, -1, -1),
        (gather, UNIT, 0, 2, -1),
        (reduce, UNIT, 2, -1, -1),
        (gather, UNIT, 1, 3, -1),
        (reduce, UNIT, 3, -1, -1),
        (gather, ROOT, -1, -1, 0),
        (gather, UNIT, -1, -1, 1),
        (gather, UNIT, -1, -1, 2),
        (gather, UNIT, -1, -1, 3),
    ]


def test_zero2_gathers_once() -> None:
    found = rows(zero2(DOMAIN))
    assert [row[0] for row in found] == [Op.REDUCE_SCATTER] * 4 + [Op.ALL_GATHER] * 4
    assert all(row[3] == -1 for row in found)


def test_hybrid_sharding_reduces_parts_between_nodes() -> None:
    made = compiled(hsdp(DOMAIN), DOMAIN)
    crossing = [m for m in made.messages if m.operation is Op.ALL_REDUCE]
    assert [m.wire_bytes for m in crossing] == [ROOT // 2] + [UNIT // 2] * 3
    for message in crossing:
        before = made.messages[message.after]
        assert before.operation is Op.REDUCE_SCATTER
        assert before.update is Update.NONE
        assert made.teams[before.teams] == ((0, 1), (2, 3))
        assert made.teams[message.teams] == ((0, 2), (1, 3))
        assert message.update is Update.SHARD


def test_others_in_the_same_population_stay_as_they_are() -> None:
    both = encode([dear(DOMAIN), hsdp(DOMAIN), dear(DOMAIN)], DOMAIN)
    plans = compile_plans_fast(both, DOMAIN)
    alone, sharded = compiled(dear(DOMAIN), DOMAIN), compiled(hsdp(DOMAIN), DOMAIN)
    assert plan_of(plans, both, 0, DOMAIN) == plan_of(plans, both, 2, DOMAIN) == alone
    assert plan_of(plans, both, 1, DOMAIN) == sharded
    assert alone.engine == "autosync"
    assert sharded.engine == "fully_shard"
