"""Strategies drawn at random from what the search proposes train as one process does."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain
from autosync.plan import Plan, compile_plans, plan_of
from autosync.population import decode, encode
from autosync.search.designs.design_table import hand_designed
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.strategy import Replica, Strategy
from autosync.verification import verify
from tests.autosync.runtime.drawn import KINDS, MODELS, Drawn, domain, run_drawn
from tests.autosync.runtime.ranks import Ranks, ranks
from tests.long_parameters import long_after

BATCHES = 6
BATCH_CASES = 18
"""Each pair of a model and an optimizer twice."""
WORLDS = ((2, 1), (2, 2))
"""(nodes, ranks per node)."""
CHANGES = ("as drawn", "explicit order", "as drawn", "uneven shares")


def drawn_space(rng: np.random.Generator) -> Space:
    """Slices and limits are those that small models reach."""
    switches = (
        "parameter_server",
        "reduce_scatter",
        "hierarchical",
        "factors",
        "priority",
        "overlap_forward",
        "load_balance",
        "adjacent_merge",
        "shard_methods",
        "idle_gathers",
    )
    return Space(
        whole_below_bytes=(0, 400, 100_000)[rng.integers(3)],
        max_parts=(2, 5, 40)[rng.integers(3)],
        max_groups=(1, 3, 20)[rng.integers(3)],
        slice_bytes=((0,), (0, 96, 1000), (200,))[rng.integers(3)],
        **{name: bool(rng.integers(2)) for name in switches},  # type: ignore[arg-type]
    )


@pytest.fixture(
    scope="module",
    params=[WORLDS[1], pytest.param(WORLDS[0], marks=pytest.mark.long)],
    ids=["2x2 ranks", "2 ranks"],
)
def world(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, Ranks]]:
    nodes, ranks_per_node = request.param
    with ranks(nodes * ranks_per_node) as pool:
        yield nodes, ranks_per_node, pool


def compiled(strategy: Strategy, where: Domain) -> Plan:
    verify(strategy, where)
    population = encode([strategy], where)
    return plan_of(compile_plans(population, where), population, 0, where)


def changed(strategy: Strategy, how: str, seed: int) -> Strategy:
    """What the sampler does not draw: an explicit order of the shards, any shares."""
    rng = np.random.default_rng(seed)
    if how == "explicit order" and strategy.schedule.order != "ddp":
        positions = tuple(int(i) for i in rng.permutation(strategy.shards))
        schedule = replace(strategy.schedule, order="explicit", positions=positions)
        return replace(strategy, schedule=schedule)
    if how == "uneven shares" and strategy.schedule.order != "ddp":
        weights = rng.uniform(0.5, 2.0, len(strategy.replicas))
        shares = [float(weight) for weight in weights / weights.sum()]
        replicas = tuple(Replica(r.rank, s) for r, s in zip(strategy.replicas, shares, strict=True))
        return replace(strategy, replicas=replicas)
    return strategy


def check(pool: Ranks, cases: list[Drawn], bit_equal: bool = True) -> None:
    """bit_equal: replicas are; else as near to each other as twice to the reference."""
    answers = pool.run(run_drawn, tuple(cases))
    for number, case in enumerate(cases):
        of = [answer[number] for answer in answers]
        label = f"{case.model}, {case.optimizer}: {case.origin}"
        assert max(one.difference for one in of) < 1e-9, label
        if bit_equal:
            assert all(one.weights == of[0].weights for one in of), label
        assert [one.disorder for one in of] == [""] * len(of), label


@pytest.mark.parametrize("batch", long_after(2, range(BATCHES)))
def test_drawn_strategies(world: tuple[int, int, Ranks], batch: int) -> None:
    nodes, ranks_per_node, pool = world
    rng = np.random.default_rng(batch)
    drawn = []
    for number in range(BATCH_CASES):
        model, optimizer = KINDS[number % len(KINDS)]
        space, seed, how = drawn_space(rng), int(rng.integers(2**32)), CHANGES[number % 4]
        where = domain(model, nodes, ranks_per_node)
        strategy = changed(decode(sample(where, space, 0, 1, seed), 0, where), how, seed)
        if strategy.schedule.order != "ddp":
            origin = f"seed {seed} of {space}, {how}"
            drawn.append(Drawn(model, optimizer, compiled(strategy, where), origin))
    assert len(drawn) > BATCH_CASES // 2
    check(pool, drawn)


@pytest.mark.parametrize("chosen", long_after(1, ["models in turn", *MODELS]))
def test_hand_designed_strategies(world: tuple[int, int, Ranks], chosen: str) -> None:
    """In `make test` each design trains one of the models, taken in turn."""
    nodes, ranks_per_node, pool = world
    designs: dict[str, list[tuple[str, Strategy]]] = defaultdict(list)
    for model in MODELS if chosen not in MODELS else (chosen,):
        for name, strategy in hand_designed(domain(model, nodes, ranks_per_node), Space()):
            if strategy.schedule.order != "ddp":
                designs[name].append((model, strategy))
    cases = []
    for number, (name, of) in enumerate(designs.items()):
        model, strategy = of[number % len(of)]
        optimizers = [optimizer for kind, optimizer in KINDS if kind == model]
        made = compiled(strategy, domain(model, nodes, ranks_per_node))
        cases.append(Drawn(model, optimizers[number % len(optimizers)], made, name))
    assert len(cases) > 10
    check(pool, cases)
