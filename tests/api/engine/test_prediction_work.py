"""What a prediction takes, before it begins."""

import pytest

from autosync.api.engine.prediction_work import check_work, estimated_seconds
from autosync.api.engine.service_limits import ServiceLimits
from autosync.cluster.cluster_file import load_cluster
from autosync.cluster.cluster_sizes import cluster_of_nodes
from autosync.errors import InvalidInput
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.domains import chain_graph, domain_of


def test_work_is_estimated_before_it_begins() -> None:
    domain = domain_of(graph=chain_graph(((8,),) * 20_000))
    with pytest.raises(
        InvalidInput, match=r"20000 variables .* this service allows 60 s"
    ) as refused:
        check_work([domain], TimelineSimulator(), 10, ServiceLimits())
    assert "--limit prediction_seconds" in refused.value.remedy
    small = domain_of()
    check_work([small], TimelineSimulator(), 30_000, ServiceLimits())
    limits = ServiceLimits(prediction_seconds=1)
    domain = domain_of(graph=chain_graph(((8,),) * 100))
    with pytest.raises(InvalidInput) as many:
        check_work([domain], TimelineSimulator(), 30_000, limits)
    fitting = int(many.value.remedy.split()[2])
    assert 0 < fitting < 30_000
    assert estimated_seconds(domain, TimelineSimulator(), fitting) <= 1
    check_work([domain], TimelineSimulator(), fitting, limits)
    ranks = domain.world_size
    with pytest.raises(InvalidInput, match=f"100 variables on {ranks}, {ranks} devices take"):
        check_work([domain, domain], TimelineSimulator(), fitting, limits)


def test_links_that_stand_as_one_are_no_work() -> None:
    """16,384 GPUs over NCCL have as many classes of links as 16; 1,024 devices on gloo have each
    their own."""
    graph = chain_graph(((8,),) * 200)
    rented = load_cluster("aws-p5-48xlarge-x4")
    many = domain_of(graph, cluster_of_nodes(rented, 2048))
    check_work([many], TimelineSimulator(), 30_000, ServiceLimits())
    for each in (cluster_of_nodes(rented, 128), many.cluster):
        on_gloo = domain_of(graph, each.on_backend("gloo"))
        with pytest.raises(InvalidInput, match="devices take"):
            check_work([on_gloo], TimelineSimulator(), 30_000, ServiceLimits())
