from dataclasses import replace

import numpy as np

from autosync.population import encode
from autosync.search.designs import known_designs
from autosync.search.designs.design_table import hand_designed, lies_in, with_pins
from autosync.search.edits.local_search import refined
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, ParameterServer, Strategy, VariableChoice, whole
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster

DOMAIN = domain_of(
    chain_graph(((700, 640), (64,), (128, 640), (128,), (400, 1280), (10,)) * 3),
    grid_cluster(2, 2, 1.0),
    1e-3,
)


def seconds(*strategies: Strategy) -> list[float]:
    return [float(each) for each in TimelineSimulator().predict(DOMAIN, encode(strategies, DOMAIN))]


def test_every_design_gets_no_slower_and_stays_in_the_space() -> None:
    better = 0
    for name, strategy in hand_designed(DOMAIN, Space()):
        found = refined(strategy, DOMAIN, Space(), 0, 256)
        verify(found, DOMAIN)
        assert lies_in(found, Space()) or name == "ddp"
        before, after = seconds(strategy, found)
        assert after < before or found is strategy
        better += after < before
        assert name != "ddp" or found is strategy
        named = refined(replace(strategy, name=name), DOMAIN, Space(), 0, 256)
        assert named.name == name
        assert named.id == found.id
    assert better > 10


def test_a_search_depends_on_its_seed_only() -> None:
    strategy = known_designs.all_reduce_one_bucket(DOMAIN)
    once, again, other = (refined(strategy, DOMAIN, Space(), seed, 512) for seed in (1, 1, 3))
    assert once == again != other
    assert seconds(once)[0] < 0.95 * seconds(strategy)[0]


def test_methods_cuts_and_pins_stay() -> None:
    pin = VariableChoice("v0", whole((700, 640)), (ParameterServer(3, 0),))
    space = Space(overlap_forward=False, priority=False, slice_bytes=(0,), pins=(pin,))
    start = with_pins(known_designs.all_reduce_one_bucket(DOMAIN), space)
    found = refined(start, DOMAIN, space, 0)
    assert found.schedule == start.schedule
    assert [choice.partition for choice in found.choices] == [c.partition for c in start.choices]
    kept, *others = found.choices
    assert replace(kept.shards[0], group=0) == replace(pin.shards[0], group=0)
    assert all(isinstance(choice.shards[0], AllReduce) for choice in others)
    assert kept.shards[0].group not in {choice.shards[0].group for choice in others}
    groups = {choice.shards[0].group for choice in others}
    assert len(groups) > 1
    assert np.isfinite(seconds(found)[0])
