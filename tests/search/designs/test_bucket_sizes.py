"""DDP by the sizes of its buckets: what is tried, and that torch would form just these buckets."""

import pytest

from autosync.bundle import make_bundle
from autosync.domain import Domain
from autosync.exports import settings_for
from autosync.exports.ddp import ddp_buckets
from autosync.population import decode, encode
from autosync.search.designs.bucket_sizes import (
    all_sizes,
    ddp_of_sizes,
    fair_ddp,
    ladder,
    neighbouring_lists,
    shortest_limits,
)
from autosync.search.designs.design_table import hand_designed, lies_in, torch_designs
from autosync.search.designs.known_designs import ddp
from autosync.search.loop.outcome import is_ddp
from autosync.search.space import SPACES, Space
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.trials.scales import scale_plan
from autosync.units import MIB
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster

LARGE = domain_of(chain_graph(((512, 1024),) * 40), grid_cluster(4, 1, 8.0))
"""40 gradients of 2 MiB."""
SMALL = domain_of(chain_graph(((64, 64),) * 12), grid_cluster(2))
"""12 gradients of 16 KiB."""
BUCKETS = SPACES["buckets"]


@pytest.mark.parametrize("domain", [LARGE, SMALL], ids=["large", "small"])
def test_the_ladder_goes_from_small_buckets_to_one(domain: Domain) -> None:
    rungs = ladder(domain)
    counts = [len({c.shards[0].group for c in each.strategy.choices}) for each in rungs]
    assert counts[0] == max(counts)
    assert min(counts) == 1
    assert [is_ddp(each.strategy) for each in rungs].count(True) == 1
    assert {each.strategy.id for each in rungs} <= {e.strategy.id for e in all_sizes(domain)}
    for each in all_sizes(domain):
        verify(each.strategy, domain)
        assert lies_in(each.strategy, BUCKETS)
    choices = {each.strategy.choices for each in all_sizes(domain)}
    assert len(choices) == len(all_sizes(domain)), "two sizes fill the same buckets"


def test_sizes_of_large_models_are_whole_mebibytes() -> None:
    assert all(each.size_bytes % MIB == 0 for each in all_sizes(LARGE))
    assert ladder(SMALL)[0].size_bytes < MIB


def test_the_space_has_ddp_alone() -> None:
    names = [name for name, _ in hand_designed(LARGE, BUCKETS)]
    assert names[0] == "ddp"
    assert "ddp_8mb" in names
    assert torch_designs(LARGE, BUCKETS) == []
    assert not lies_in(ddp(LARGE), BUCKETS), "its gradients are copied into buckets"
    assert lies_in(fair_ddp(LARGE), BUCKETS)


def test_lists_have_few_digits_and_fill_what_they_should() -> None:
    lists = neighbouring_lists(LARGE, (8 * MIB,))
    assert len(lists) > 10
    for limits in lists:
        assert all(limit % (MIB // 1000) == 0 or limit * 1000 % MIB < 1000 for limit in limits)
        strategy = ddp_of_sizes(LARGE, limits)
        verify(strategy, LARGE)
        assert strategy.schedule.ddp is not None
        formed = ddp_buckets(LARGE.graph, strategy.schedule.ddp.bucket_limits_bytes)
        assert len(formed) == len({choice.shards[0].group for choice in strategy.choices})
    assert shortest_limits(LARGE, (4 * MIB,)) is None, "one size does it"
    assert shortest_limits(LARGE, (1, 5 * MIB)) == (2 * MIB, 6 * MIB)


def test_views_and_lists_reach_plan_and_script() -> None:
    strategy = ddp_of_sizes(LARGE, (2 * MIB, 6 * MIB))
    assert decode(encode([fair_ddp(LARGE), strategy], LARGE), 1, LARGE).id == strategy.id
    plan = make_bundle(strategy, LARGE).plan
    assert plan.ddp is not None
    assert plan.ddp == strategy.schedule.ddp
    half = scale_plan(plan, LARGE.graph, 0.5).ddp
    assert half is not None
    assert half.bucket_limits_bytes == (MIB, 3 * MIB)
    call = "DistributedDataParallel(model, bucket_cap_mb_list=[2, 6], gradient_as_bucket_view=True)"
    assert call in settings_for("ddp", strategy, LARGE).snippet
    assert not is_ddp(strategy)


def test_views_take_the_memory_of_the_gradients_once() -> None:
    population = encode([ddp(LARGE), fair_ddp(LARGE)], LARGE)
    plain, fair = memory_of(LARGE).peak_bytes(compile_plans_fast(population, LARGE), population)
    assert fair.max() < plain.max()
    assert lies_in(ddp(LARGE), Space())
