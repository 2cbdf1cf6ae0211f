"""Fitted constants: read, matched to clusters by name, and applied where they belong."""

from dataclasses import replace

import pytest

from autosync.cluster_file import bundled_clusters, load_cluster
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.cost.fitted_constants import (
    calibrated,
    constants_of,
    load_constants,
    with_engine,
    with_network,
)
from tests.domains import chain_graph, domain_of, grid_cluster

FITTED = load_constants("rtx-2080-ti")
MINE = [name for name in bundled_clusters() if name.startswith("rtx-2080-ti")]


@pytest.mark.parametrize("name", MINE)
def test_bundled_clusters_carry_the_fitted_rates_and_startups(name: str) -> None:
    cluster = load_cluster(name)
    assert constants_of(cluster) == FITTED
    network = "10gbe" if "10gbe" in name else "ib100" if "ib100" in name else "node"
    assert with_network(cluster, FITTED, network) == cluster
    hosts = [node for node in cluster.nodes if node.server_only]
    assert len(hosts) == name.endswith("-servers") * (len(cluster.nodes) // 2)


def test_every_size_of_both_networks_is_bundled() -> None:
    assert len(MINE) == 1 + 2 * (5 + 4)
    assert load_cluster("rtx-2080-ti-8x4-ib100-servers").world_size == 32


def test_other_clusters_have_no_constants() -> None:
    assert constants_of(grid_cluster()) is None
    with pytest.raises(NotFound, match="rtx-2080-ti"):
        load_constants("gtx-970")


def test_impossible_constants_are_refused() -> None:
    with pytest.raises(InvalidInput, match="engine_x"):
        replace(FITTED, engine_seconds={"engine_x": -1e-3})
    with pytest.raises(InvalidInput, match="node"):
        replace(FITTED, networks={})


def test_only_matrix_products_beside_other_devices_slow_down() -> None:
    graph = chain_graph()
    kinds = ("addmm", "convolution", "bmm", "relu", "mm", "convolution")
    operations = tuple(
        replace(operation, type=kind)
        for operation, kind in zip(graph.operations, kinds, strict=True)
    )
    graph = replace(graph, operations=operations)
    beside = calibrated(domain_of(graph, grid_cluster(2, 2), 1e-3), 0.5)
    assert beside.profile.forward_seconds == pytest.approx(
        [1.5e-3, 1e-3, 1.5e-3, 1e-3, 1.5e-3, 1e-3]
    )
    assert beside.profile.backward_seconds == pytest.approx([3e-3, 2e-3, 3e-3, 2e-3, 3e-3, 2e-3])
    alone = domain_of(graph, grid_cluster(4, 1), 1e-3)
    assert calibrated(alone, 0.5) is alone


def test_an_engine_replaces_the_one_before() -> None:
    cluster = with_engine(with_engine(grid_cluster(), 1e-3), 2e-3)
    assert [cost.startup_seconds for cost in cluster.costs] == [2e-3]
    assert cluster.cost("engine").startup_seconds == 2e-3
