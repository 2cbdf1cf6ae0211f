"""Iterations that add up the gradients of several batches before an update."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import profile_from_step_seconds
from autosync.search.designs.known_designs import ddp
from autosync.simulator.accumulation import accumulated_seconds
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator


def a100s() -> Domain:
    graph = bundled("bert_base", 8)
    profile = profile_from_step_seconds(graph, 0.1, "a100")
    nodes = tuple(Node(f"10.0.0.{i}", (Device("a100", 8),), 400.0, 1880.0) for i in (1, 2))
    cluster = Cluster("two nodes", nodes, "nccl", transport="infiniband")
    return Domain(graph, cluster, replace(profile, update_seconds=0.01))


def test_gradients_travel_once_but_under_fully_shard() -> None:
    domain = a100s()
    population = encode([ddp(domain), fully_sharded(domain, 16)], domain)
    once = TimelineSimulator().predict(domain, population)
    four = accumulated_seconds(domain, population, once, 4)
    assert four[0] == pytest.approx(once[0] + 3 * 0.1)
    assert four[1] == pytest.approx(4 * once[1] - 3 * 0.01 / 16)
    assert (accumulated_seconds(domain, population, once, 1) == once).all()


def test_no_batch_is_refused() -> None:
    domain = a100s()
    population = encode([ddp(domain)], domain)
    with pytest.raises(InvalidInput, match="0 batches"):
        accumulated_seconds(domain, population, np.ones(1), 0)
