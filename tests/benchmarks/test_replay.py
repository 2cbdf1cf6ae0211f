"""The search replayed on a pool of invented measurements."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.population import decode, encode
from autosync.search.designs.design_table import DESIGNS
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.runtime_dataset import SAMPLED, MeasuredDomain
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.replay import MeasuredPool, answers, pool_of, replay, taught
from tests.domains import chain_graph, domain_of, grid_cluster

DESIGNED = ("ddp", "ps_load_balanced")


def pool(name: str, seed: int, noise: float = 0.0) -> MeasuredPool:
    """A pool whose seconds are the timeline's, with noise."""
    shapes = ((64, 2000), (500, 640), (128, 640), (1280,), (100, 1280))
    graph = replace(chain_graph(shapes), name=name)
    domain = domain_of(graph, grid_cluster(4, gbps=0.1 + 0.05 * seed))
    designs = [DESIGNS[design](domain) for design in DESIGNED]
    drawn = sample(domain, Space(whole_below_bytes=0), 0, 40, seed)
    everything = [*designs, *(decode(drawn, i, domain) for i in range(len(drawn)))]
    population = encode(everything, domain)
    rng = np.random.default_rng(seed)
    true = TimelineSimulator().predict(domain, population)
    one, two = (true * np.exp(noise * rng.standard_normal(len(true))) for _ in range(2))
    origins = (*DESIGNED, *([SAMPLED] * len(drawn)))
    measured = MeasuredDomain(domain, population, one, two, true, 0, origins, (0,) * len(true))
    return pool_of(measured, with_shards=False)


@pytest.fixture(scope="module")
def pools() -> tuple[MeasuredPool, ...]:
    return pool("one", 0), pool("other", 1, noise=0.01)


@pytest.mark.parametrize("name", ["random", "timeline", "gaussian"])
def test_a_replay_ends_nearer_than_it_begins_and_is_repeatable(
    pools: tuple[MeasuredPool, ...], name: str
) -> None:
    simulator = taught(name, True, pools[0], pools)
    found = replay(pools[0], name, simulator, 20, seed=1)
    assert len(found) == 20
    assert found[-1] <= found[0]
    assert (found >= 0.0).all()
    assert (replay(pools[0], name, simulator, 20, seed=1) == found).all()


def test_what_predicts_rightly_finds_the_fastest_at_once(pools: tuple[MeasuredPool, ...]) -> None:
    assert (replay(pools[0], "timeline", None, 8, seed=0) == 0.0).all()


def test_the_answer_is_the_best_of_the_three_fastest_in_their_trials() -> None:
    found = answers(np.array([3.0, 1.0, 2.0, 1.5, 9.0]), np.array([3.1, 2.5, 2.2, 2.4, 0.5]))
    assert found.tolist() == [3.1, 2.5, 2.2, 2.2, 2.2]
