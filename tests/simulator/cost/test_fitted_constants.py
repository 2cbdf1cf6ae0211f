"""Fitted constants: read, matched to clusters by name, physically possible; applied to clusters and
domains, with intervals that are wider beyond what was measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, Node
from autosync.cluster.cluster_file import bundled_clusters, load_cluster
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.simulator.cost.applied_constants import (
    exposed_pass_seconds,
    extrapolations,
    gradient_bytes,
    interval_share,
    straggler_slowdown,
    uses_tcp,
    with_engine,
    with_replication_costs,
)
from autosync.simulator.cost.fitted_constants import (
    PAYLOAD_SHARE,
    PHYSICAL_BOUNDS,
    constants_of,
    load_constants,
)
from benchmarks.published.published_clusters import ring_costs, with_network
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.worked_examples import cluster_of, on_devices

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


def nccl_cluster(nodes: int, devices: int, gbps: float, latency_us: float = 50.0) -> Cluster:
    hosts = [
        Node(f"n{i}", (Device("v100", devices),), gbps, 100.0, latency_us) for i in range(nodes)
    ]
    return Cluster("other", tuple(hosts), "nccl")


def test_a_ring_pays_a_launch_and_every_hop() -> None:
    hop_seconds = 50e-6
    for nodes, devices, between in ((1, 4, 0), (4, 1, 4), (2, 4, 2), (16, 4, 16)):
        workers = nodes * devices
        all_reduce, *halves = ring_costs(nccl_cluster(nodes, devices, 9.0), FITTED, hop_seconds)
        mean = (between * hop_seconds + (workers - between) * FITTED.hop_seconds) / workers
        startup = all_reduce.startup_seconds + workers * all_reduce.startup_seconds_per_worker
        assert startup == pytest.approx(FITTED.message_seconds + 2 * (workers - 1) * mean)
        for half in halves:
            assert half.startup_seconds == all_reduce.startup_seconds / 2


def test_an_all_reduce_of_64_devices_starts_as_slowly_as_published() -> None:
    # DeAR, section II-D: 1 MB takes around 4.5 ms and 500 KB 3.9 ms on 16 nodes of 4 under 10 GbE,
    # so that 3.3 ms are no bytes; no row of the fit has more than 16 devices
    cluster = load_cluster("rtx-2080-ti-16x4-10gbe")
    cost = cluster.cost("all_reduce")
    startup = cost.startup_seconds + cost.startup_seconds_per_worker * cluster.world_size
    assert 1.5e-3 < startup < 4.5e-3


def test_an_engine_replaces_the_one_before() -> None:
    cluster = with_engine(with_engine(grid_cluster(), 1e-3), 2e-3)
    assert [cost.startup_seconds for cost in cluster.costs] == [2e-3]
    assert cluster.cost("engine").startup_seconds == 2e-3


def test_a_server_host_is_no_faster_than_its_port() -> None:
    cluster = load_cluster("rtx-2080-ti-2x4-10gbe-servers")
    swift = replace(FITTED.networks["10gbe"], server_bandwidth_gbps=9.5, payload_share=0.9)
    constants = replace(FITTED, networks={"10gbe": swift})
    rates = {node.bandwidth_gbps for node in with_network(cluster, constants, "10gbe").nodes}
    assert rates == {9.0}


def test_transports_are_told_apart_by_latency() -> None:
    assert uses_tcp(nccl_cluster(2, 4, 23.9))
    assert not uses_tcp(nccl_cluster(2, 4, 97.0, latency_us=2.0))


IDEAL = replace(load_constants("rtx-2080-ti"), straggler_share=0.0, hidden_share=0.0)
SIZES = ((1_000_000,), (3_000_000,))


def test_every_gradient_passes_a_port_once_more_where_it_becomes_ready() -> None:
    domain = domain_of(chain_graph(SIZES), cluster_of(2, 2, backend="nccl"), 1e-3)
    beside = with_replication_costs(domain, IDEAL)
    rate = domain.cluster.nodes[0].intra_bandwidth_gbps or 0.0
    added = np.subtract(beside.profile.backward_seconds, domain.profile.backward_seconds)
    assert added == pytest.approx([4e6 * 8 / (rate * 1e9), 12e6 * 8 / (rate * 1e9)])
    assert beside.profile.forward_seconds == domain.profile.forward_seconds


def test_a_pass_that_runs_beside_compute_costs_nothing() -> None:
    domain = domain_of(chain_graph(SIZES), cluster_of(2, 2, backend="nccl"), 1.0)
    assert exposed_pass_seconds(domain, replace(IDEAL, hidden_share=0.4)) == 0.0
    whole = exposed_pass_seconds(domain, IDEAL)
    some = whole / 2 / domain.compute_seconds
    assert exposed_pass_seconds(domain, replace(IDEAL, hidden_share=some)) == pytest.approx(
        whole / 2
    )


def test_of_sparse_gradients_the_touched_rows_pass() -> None:
    graph = chain_graph(((8, 4),) * 2, sparse=(1,))
    dense, sparse = graph.variables
    assert gradient_bytes(dense) == dense.size_bytes
    assert gradient_bytes(sparse) == dense.size_bytes * sparse.touched_rows / 8


def test_the_slowest_of_more_devices_is_slower_but_ever_less_so() -> None:
    shares = [straggler_slowdown(workers, 0.01) for workers in (1, 2, 8, 64, 512)]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert shares[4] - shares[3] < shares[3] - shares[2] < 0.01
    assert shares[3] == pytest.approx(0.0288, abs=1e-4)


def test_all_of_compute_waits_for_the_slowest() -> None:
    domain = domain_of(chain_graph(SIZES), cluster_of(2, 2, backend="nccl"), 1e-3)
    slow = replace(IDEAL, straggler_share=0.05, hidden_share=0.5)
    domain = with_replication_costs(domain, replace(slow, straggler_share=0.0))
    beside = with_replication_costs(domain, slow)
    slower = 1.0 + straggler_slowdown(4, 0.05)
    assert beside.profile.forward_seconds == pytest.approx(
        [seconds * slower for seconds in domain.profile.forward_seconds]
    )


def domain_on(cluster: Cluster, step_seconds: float = 0.2529) -> Domain:
    graph = bundled("resnet50", 64)
    return Domain(graph, cluster, profile_from_step_seconds(graph, step_seconds, "rtx-2080-ti"))


def at_rate(name: str, gbps: float) -> Cluster:
    cluster = load_cluster(name)
    nodes = tuple(replace(node, bandwidth_gbps=gbps) for node in cluster.nodes)
    return replace(cluster, name="other", nodes=nodes)


@pytest.mark.parametrize("name", ["rtx-2080-ti-4x4-10gbe", "rtx-2080-ti-2x4-ib100"])
def test_within_the_measured_range_nothing_is_extrapolated(name: str) -> None:
    assert extrapolations(domain_on(load_cluster(name)), FITTED) == []
    share = interval_share(FITTED, [], compute_is_known=True)
    assert share == FITTED.calibrated.error_share > 0
    assert interval_share(FITTED, [], compute_is_known=False) > share


def test_what_lies_beyond_is_named_and_widens_the_interval() -> None:
    cases = {
        "64 workers": domain_on(load_cluster("rtx-2080-ti-16x4-10gbe")),
        "GB of gradients per second": domain_on(load_cluster("rtx-2080-ti-4x4-10gbe"), 0.02),
        "TCP payload": domain_on(at_rate("rtx-2080-ti-4x4-10gbe", 1.0)),
    }
    for words, domain in cases.items():
        (beyond,) = extrapolations(domain, FITTED)
        assert words in beyond.why
        assert interval_share(FITTED, [beyond], True) > FITTED.calibrated.error_share
    far, near = (
        extrapolations(domain_on(at_rate("rtx-2080-ti-4x4-10gbe", rate)), FITTED)
        for rate in (0.5, 4.0)
    )
    assert interval_share(FITTED, far, True) > interval_share(FITTED, near, True)


def test_other_devices_are_named() -> None:
    domain = on_devices(domain_on(load_cluster("rtx-2080-ti-2x4-ib100")), Device("v100", 4))
    (beyond,) = extrapolations(domain, FITTED)
    assert "not on v100" in beyond.why


def test_a_profile_without_compute_lies_beyond_what_was_measured() -> None:
    domain = domain_on(load_cluster("rtx-2080-ti-4x4-10gbe"))
    nothing = (0.0,) * len(domain.graph.operations)
    profile = replace(domain.profile, forward_seconds=nothing, backward_seconds=nothing)
    (beyond,) = extrapolations(replace(domain, profile=profile), FITTED)
    assert "GB of gradients per second" in beyond.why
