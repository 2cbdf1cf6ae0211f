"""Intervals: as wide as left-out rows were off, wider beyond what was measured."""

from dataclasses import replace

import pytest

from autosync.cluster import Cluster
from autosync.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.simulator.cost.fitted_constants import load_constants
from autosync.simulator.cost.prediction_interval import (
    connection_limits,
    extrapolations,
    interval_share,
)

FITTED = load_constants("rtx-2080-ti")


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
    cluster = load_cluster("rtx-2080-ti-2x4-ib100")
    nodes = tuple(
        replace(node, devices=(replace(node.devices[0], type="v100"),)) for node in cluster.nodes
    )
    (beyond,) = extrapolations(domain_on(replace(cluster, nodes=nodes)), FITTED)
    assert "not on v100" in beyond.why


def test_fast_ports_under_tcp_ask_for_a_probe() -> None:
    fast = at_rate("rtx-2080-ti-4x4-10gbe", 23.9)
    assert connection_limits(fast)
    assert any("autosync probe" in each.why for each in extrapolations(domain_on(fast), FITTED))
    assert not connection_limits(replace(fast, connection_gbps=20.0))
    assert not connection_limits(load_cluster("rtx-2080-ti-4x4-10gbe"))
    assert not connection_limits(load_cluster("rtx-2080-ti-4x4-ib100"))
