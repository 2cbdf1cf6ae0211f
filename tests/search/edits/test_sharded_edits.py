"""Neighbours of strategies under torch's `fully_shard`."""

from dataclasses import replace

import numpy as np

from autosync.population import decode, encode
from autosync.search.edits.sharded_edits import neighbours_of_sharding, sharded_neighbours
from autosync.search.loop.ranking import ranking_context
from autosync.search.loop.settings import Settings
from autosync.search.loop.sources import Searched, neighbour_shortlist, round_shares
from autosync.search.sampler.sampling import sample
from autosync.search.sampler.sharded_draws import sharding_choices
from autosync.simulator.sharded_strategy import sharded_by
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import EXACT, Encoding
from autosync.torch_engine import FullyShard
from autosync.verification import verify
from tests.search.sampler.test_sharded_draws import DOMAIN, SPACE

BF16 = Encoding("bf16")
LOSSY = replace(SPACE, encodings=(EXACT, BF16))
LAYERS = tuple(f"layers.{i}" for i in range(10))
PARENT = FullyShard((LAYERS[:2], *LAYERS[2:]), 4)


def test_every_choice_changes_alone() -> None:
    choices = sharding_choices(DOMAIN, LOSSY)
    found = dict(neighbours_of_sharding((PARENT, EXACT), choices))
    assert found.pop(PARENT) == BF16
    assert set(found.values()) == {EXACT}
    layouts = {each.units for each in found} - {PARENT.units}
    assert len(layouts) == 8 + 1 + 2  # merged, split, with a unit for what stands beside the blocks
    assert {LAYERS, (LAYERS[:3], *LAYERS[3:])} <= layouts
    assert {("first", *PARENT.units), (*PARENT.units, "last")} <= layouts
    alike = [each for each in found if each.units == PARENT.units]
    assert {each.kept_units for each in alike} == {0, 1}
    assert sum(each.kept_units for each in alike) == 9
    assert {each.shard_ranks for each in alike} == {2, 4}
    assert sum(each.smaller_groups == (2,) for each in alike) == 9
    assert {each.param_dtype for each in alike} == {"", "bf16"}
    assert {(each.forward_prefetch, each.backward_prefetch) for each in alike} == {
        (1, 1), (2, 1), (1, 2),
    }  # fmt: skip
    for engine in found:
        verify(sharded_by(DOMAIN, engine), DOMAIN, allow_lossy=True)


def test_what_is_kept_between_batches_changes_alone() -> None:
    choices = sharding_choices(replace(DOMAIN, accumulate=2), SPACE)
    found = [engine for engine, _ in neighbours_of_sharding((PARENT, EXACT), choices)]
    others = {each for each in found if each.kept_between_batches}
    assert others == {
        replace(PARENT, kept_between_batches=kept) for kept in ("gradients", "values")
    }


def test_the_way_back_is_a_neighbour_too() -> None:
    choices = sharding_choices(DOMAIN, LOSSY)
    for other in neighbours_of_sharding((PARENT, EXACT), choices):
        assert (PARENT, EXACT) in set(neighbours_of_sharding(other, choices))


def test_neighbours_of_random_shardings_run() -> None:
    parents = sample(DOMAIN, LOSSY, 0, 6, seed=1)
    near = sharded_neighbours(DOMAIN, LOSSY, parents, 100)
    assert len(near) == 100
    found = [decode(near, index, DOMAIN) for index in range(len(near))]
    assert len({each.id for each in found}) == len(found)
    for strategy in found:
        verify(strategy, DOMAIN, allow_lossy=True)
    again = encode(found, DOMAIN)
    seconds = TimelineSimulator().predict
    assert np.array_equal(seconds(DOMAIN, again), seconds(DOMAIN, near))


def test_measured_shardings_have_their_neighbours_tried() -> None:
    settings = Settings()
    assert round_shares(settings, 8, 0, sharded=2) == [("sampled", 4), ("neighbour", 4)]
    context = ranking_context(DOMAIN, TimelineSimulator(), "prediction", None, [])
    measured = encode([sharded_by(DOMAIN, PARENT)], DOMAIN)
    searched = Searched(measured.take(np.arange(0)), np.empty(0), DOMAIN, measured)
    listed = neighbour_shortlist(context, SPACE, searched, 100, 0)
    parent_seconds = TimelineSimulator().predict(DOMAIN, measured)[0]
    assert 0 < len(listed) < 100
    assert listed.seconds[0] < parent_seconds
