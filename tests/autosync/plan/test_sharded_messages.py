"""What `fully_shard` sends, message by message."""

from autosync.codes import Op, Update
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import encode
from autosync.search.designs.known_designs import dear
from autosync.search.designs.torch_engines import fsdp2, hsdp, zero2
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy
from tests.domains import domain_of, grid_cluster, layered_graph

DOMAIN = domain_of(layered_graph(((100, 10),) * 5), grid_cluster(2, 2))
UNIT, ROOT = 4000, 8000


def plan(strategy: Strategy) -> Plan:
    population = encode([strategy], DOMAIN)
    return plan_of(compile_plans(population, DOMAIN), population, 0, DOMAIN)


def rows(strategy: Strategy) -> list[tuple[Op, int, int, int, int]]:
    """Operation, bytes, gradient that it waits for, gradient or operation that waits for it."""
    return [(m.operation, m.wire_bytes, m.ready, m.before, m.gate) for m in plan(strategy).messages]


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
    made = plan(hsdp(DOMAIN))
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
    alone = plan(dear(DOMAIN))
    assert plan_of(plans, both, 0, DOMAIN) == plan_of(plans, both, 2, DOMAIN) == alone
    assert plan_of(plans, both, 1, DOMAIN) == plan(hsdp(DOMAIN))
    assert alone.engine == "autosync"
    assert plan(hsdp(DOMAIN)).engine == "fully_shard"
