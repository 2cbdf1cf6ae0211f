"""Fitted constants: read, matched to clusters by name, and within what is physically possible."""

from dataclasses import replace
from typing import Any

import pytest

from autosync.cluster_file import bundled_clusters, load_cluster
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.cost.applied_constants import with_network
from autosync.simulator.cost.fitted_constants import (
    PAYLOAD_SHARE,
    PHYSICAL_BOUNDS,
    constants_of,
    load_constants,
)
from tests.domains import grid_cluster

FITTED = load_constants("rtx-2080-ti")
MINE = [name for name in bundled_clusters() if name.startswith("rtx-2080-ti")]


@pytest.mark.parametrize("name", MINE)
def test_bundled_clusters_carry_the_fitted_rates_and_startups(name: str) -> None:
    cluster = load_cluster(name)
    assert constants_of(cluster) == FITTED
    alone = sum(node.ranks > 0 for node in cluster.nodes) == 1 and "servers" not in name
    network = None if alone else "10gbe" if "10gbe" in name else "ib100"
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


@pytest.mark.parametrize("field", [name for name in PHYSICAL_BOUNDS if name != "engine_seconds"])
def test_constants_beyond_their_physical_bounds_are_refused(field: str) -> None:
    least, most, why = PHYSICAL_BOUNDS[field]
    for value in (most * 1.01, least - 1e-9):
        changed: dict[str, Any] = {field: value}
        with pytest.raises(InvalidInput, match=field) as refused:
            replace(FITTED, **changed)
        assert why in str(refused.value)
    with pytest.raises(InvalidInput, match="engine_x"):
        replace(FITTED, engine_seconds={"engine_x": -1e-3})


def test_no_rate_is_above_what_its_transport_carries() -> None:
    ethernet = FITTED.networks["10gbe"]
    for wrong in (
        replace(ethernet, payload_share=0.981),
        replace(ethernet, server_bandwidth_gbps=9.81),
    ):
        with pytest.raises(InvalidInput, match="tcp carries no more"):
            replace(FITTED, networks={"10gbe": wrong})
    assert ethernet.payload_share <= PAYLOAD_SHARE["tcp"]
