"""Owners among hundreds of servers: a few are looked at, and neither the chances nor the guard
change."""

import numpy as np
import pytest

from autosync.population import Population
from autosync.search.sampler.counter_random import word
from autosync.search.sampler.load_balance import (
    FEW_SERVERS,
    TEMPERATURE,
    Servers,
    begin_owners,
    draw_owner,
    place_on,
)
from autosync.search.sampler.sampling import sample
from autosync.search.sampler.sampling_tables import alias_table
from autosync.search.space import Space
from tests.domains import chain_graph, domain_of, grid_cluster

COUNT = 100
OWNERS_ONLY = Space(all_reduce=False, reduce_scatter=False)


def servers_with(weight: np.ndarray, load: np.ndarray, total: float) -> Servers:
    chance, alias = alias_table(weight)
    deficit = total * weight - load
    heap, place = np.empty((2, len(weight)), dtype=np.int64)
    found = Servers(weight, np.log(weight), chance, alias, load, deficit, heap, place)
    begin_owners(found)
    return found


def test_an_alias_table_has_every_weight() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 65, 1000):
        weight = rng.random(count) ** 3 + 1e-3
        weight /= weight.sum()
        chance, alias = alias_table(weight)
        found = chance / count
        np.add.at(found, alias, (1.0 - chance) / count)
        assert found == pytest.approx(weight)
        assert chance.min() >= 0.0
        assert chance.max() <= 1.0 + 1e-9


def test_a_few_looked_at_are_drawn_as_the_softmax_over_all_says() -> None:
    """Two bandwidths, and loads from nothing to two shards: chances from 0.04 to 2.5 %."""
    assert COUNT > FEW_SERVERS
    weight = np.where(np.arange(COUNT) % 2 == 0, 2.0, 1.0)
    weight /= weight.sum()
    load = np.array([0.0, 0.5, 1.0, 2.0])[np.arange(COUNT) // 25]
    servers, placed = servers_with(weight, load, 1000.0), float(load.sum())
    logits = np.log(weight) + (placed * weight - load) / TEMPERATURE
    wanted = np.exp(logits - logits.max())
    wanted /= wanted.sum()
    draws = 40_000
    found = [
        draw_owner(servers, np.uint64(word(np.uint64(1), n)), 1.0, 1e9, placed)
        for n in range(draws)
    ]
    shares = np.bincount(found, minlength=COUNT) / draws
    noise = 0.5 * np.sqrt(2 * wanted / (np.pi * draws)).sum()
    assert 0.5 * np.abs(shares - wanted).sum() < noise + 0.03
    by_load = [shares[load == each].sum() for each in (0.0, 0.5, 1.0, 2.0)]
    assert by_load == pytest.approx(
        [wanted[load == each].sum() for each in (0.0, 0.5, 1.0, 2.0)], abs=0.03
    )


def test_the_neediest_is_on_top_whatever_is_placed() -> None:
    rng = np.random.default_rng(1)
    weight = rng.random(COUNT) + 0.1
    servers = servers_with(weight / weight.sum(), np.zeros(COUNT), 500.0)
    for _ in range(2000):
        place_on(servers, int(rng.integers(COUNT)), float(rng.random()))
        assert servers.heap[0] == int(np.argmax(servers.deficit))
        assert (servers.heap[servers.place] == np.arange(COUNT)).all()


def test_the_server_with_the_largest_deficit_takes_a_shard_that_none_may() -> None:
    weight = np.full(COUNT, 1.0 / COUNT)
    load = np.full(COUNT, 5.0)
    load[71] = 4.0
    servers = servers_with(weight, load, 500.0)
    assert draw_owner(servers, np.uint64(word(np.uint64(0), 0)), 3.0, 1.5, float(load.sum())) == 71


def loads_of(drawn: Population, index: int, servers: int) -> np.ndarray:
    rows = slice(drawn.first[index], drawn.first[index + 1])
    return np.bincount(drawn.server[rows], drawn.length[rows], minlength=servers)


def test_noise_never_breaks_the_balance_of_hundreds_of_servers() -> None:
    """128 servers, one of the largest shard among many of a quarter of it."""
    domain = domain_of(chain_graph((*((64,),) * 1024, (256,))), grid_cluster(16, 8))
    drawn = sample(domain, OWNERS_ONLY, 0, 64, 0)
    even = (1024 * 64 + 256) / 128
    for index in range(64):
        assert np.abs(loads_of(drawn, index, 128) - even).max() <= 256
    assert len({drawn.server[drawn.first[i]] for i in range(64)}) > 20
