"""Answers of `autosync predict` far from what was measured: possible, ordered and not too sure."""

from dataclasses import replace
from itertools import pairwise

import pytest

from autosync.api.http.given_predictions import answer_all, strategies_to_predict
from autosync.api.views.prediction_ranges import calibrate
from autosync.api.views.schemas import GivenPrediction
from autosync.cluster import Cluster
from autosync.cluster.cluster_file import load_cluster
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator

SERVERS = "rtx-2080-ti-4x4-10gbe-servers"
METHODS = ("BSP-A2A", "WFBP-A2A", "MG-WFBP", "ByteScheduler-A2A", "WFBP-PS")


def domain_on(cluster: Cluster | str, model: str = "vgg16", step_seconds: float = 0.45) -> Domain:
    graph = bundled(model, 32)
    machines = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return Domain(graph, machines, profile_from_step_seconds(graph, step_seconds, "rtx-2080-ti"))


def with_ports(gbps: float, connection_gbps: float = 0.0) -> Cluster:
    """Four nodes of four devices and four server hosts under TCP, of another name."""
    cluster = load_cluster(SERVERS)
    nodes = tuple(replace(node, bandwidth_gbps=gbps) for node in cluster.nodes)
    return replace(cluster, name="other", nodes=nodes, costs=(), connection_gbps=connection_gbps)


def predicted(alone: Domain, *names: str, constants: str = "auto") -> list[GivenPrediction]:
    calibration = calibrate(alone, constants, compute_is_known=True)
    asked = strategies_to_predict(calibration.domain, names or METHODS)
    return answer_all(calibration, asked, None, TimelineSimulator())


@pytest.mark.parametrize("model", ["vgg16", "densenet121"])
def test_nothing_is_faster_than_possible_on_any_network(model: str) -> None:
    without_engine = tuple(name for name in METHODS if not name.startswith("ByteScheduler"))
    for cluster, methods in (
        (load_cluster(SERVERS), METHODS),
        (load_cluster("rtx-2080-ti-8x4-ib100-servers"), METHODS),
        *((with_ports(rate), without_engine) for rate in (23.9, 95.6)),
    ):
        for answer in predicted(domain_on(cluster, model), *methods):
            assert answer.predicted_seconds >= answer.limit_seconds * 0.9999, answer.strategy
            assert answer.low_seconds < answer.predicted_seconds < answer.high_seconds


def test_faster_ports_never_take_longer() -> None:
    rates = (1.0, 4.0, 9.5, 23.9, 38.2, 95.6)
    by_rate = [predicted(domain_on(with_ports(rate)), "BSP-A2A", "WFBP-PS") for rate in rates]
    for slow, fast in pairwise(by_rate):
        for before, after in zip(slow, fast, strict=True):
            assert after.predicted_seconds <= before.predicted_seconds * 1.0001


def test_more_workers_and_more_bytes_never_take_less() -> None:
    sizes = ("1x4", "2x4-ib100", "4x4-ib100", "8x4-ib100", "16x4-ib100")
    answers = [
        predicted(domain_on(f"rtx-2080-ti-{size}"), "BSP-A2A", "MG-WFBP", "ddp") for size in sizes
    ]
    for few, many in pairwise(answers):
        for before, after in zip(few, many, strict=True):
            assert after.predicted_seconds >= before.predicted_seconds
    slim, wide = (
        predicted(domain_on("rtx-2080-ti-4x4-10gbe", model), "BSP-A2A")[0]
        for model in ("resnet50", "resnet101")
    )
    assert wide.predicted_seconds > slim.predicted_seconds


def test_within_the_measured_range_there_is_nothing_to_warn_of() -> None:
    (answer,) = predicted(domain_on("rtx-2080-ti-4x4-10gbe", "resnet50", 0.13), "WFBP-A2A")
    assert answer.warnings == []
    share = answer.high_seconds / answer.predicted_seconds
    assert share == pytest.approx(answer.predicted_seconds / answer.low_seconds)
    (far,) = predicted(domain_on("rtx-2080-ti-16x4-10gbe", "resnet50", 0.13), "WFBP-A2A")
    assert far.high_seconds / far.predicted_seconds > share
    assert any("64 workers" in warning for warning in far.warnings)


def test_other_nccl_clusters_take_the_constants_of_their_classes() -> None:
    cluster = with_ports(9.5)
    (by_class,) = predicted(domain_on(cluster), "BSP-A2A")
    assert by_class.constants == "by-class"
    assert any("states no transport" in warning for warning in by_class.warnings)
    graph = bundled("vgg16", 32)
    profile = profile_from_step_seconds(graph, 0.1, "h100")
    h100 = load_cluster("aws-p5-48xlarge-x4")
    (answer,) = predicted(Domain(graph, h100, profile), "ddp")
    assert any("no training run was measured on h100" in each for each in answer.warnings)
    (bare,) = predicted(domain_on(cluster), "BSP-A2A", constants="none")
    assert bare.constants is None
    assert bare.predicted_seconds < by_class.predicted_seconds
    (cpu,) = predicted(domain_on(replace(cluster, backend="gloo")), "BSP-A2A")
    assert cpu.constants is None


def test_slow_messages_widen_the_interval_where_they_are_not_hidden() -> None:
    graph = bundled("gpt2_medium", 8)
    p5 = load_cluster("aws-p5-48xlarge-x4")

    def upper(step_seconds: float) -> float:
        profile = profile_from_step_seconds(graph, step_seconds, "h100")
        (answer,) = predicted(Domain(graph, p5, profile), "BSP-A2A")
        assert answer.low_seconds < answer.predicted_seconds < answer.high_seconds
        return answer.high_seconds / answer.predicted_seconds

    assert upper(0.002) > upper(0.5) + 0.1


def test_what_binds_is_named() -> None:
    for step_seconds, resource in ((5.0, "compute"), (0.001, "NIC")):
        (answer,) = predicted(domain_on(SERVERS, "vgg16", step_seconds), "WFBP-A2A")
        assert answer.binding.startswith(resource)


def test_accumulated_batches_lengthen_the_update_and_raise_throughput() -> None:
    (one,) = predicted(domain_on(SERVERS), "ddp")
    (four,) = predicted(replace(domain_on(SERVERS), accumulate=4), "ddp")
    assert one.predicted_seconds < four.predicted_seconds < 4 * one.predicted_seconds
    assert four.samples_per_second > one.samples_per_second
    assert four.percent_of_limit <= 100.01
