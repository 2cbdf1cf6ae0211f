"""Strategies with knobs of NCCL: where they may run, and what their iterations take."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.bundle import make_bundle, with_extension
from autosync.domain import Domain
from autosync.errors import InvalidInput, InvalidStrategy, NotSupported
from autosync.exports import settings_for
from autosync.extensions.nccl.verification import describe
from autosync.nccl_knobs import NcclKnobs, NcclRange
from autosync.population import encode
from autosync.search.designs.known_designs import ddp
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.backends.nccl import collective_times
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.simulator.topology import topology_of
from autosync.strategy import AllReduce, Strategy
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.test_topology import cluster
from tests.simulator.worked_examples import strategy_of

ON_TCP = cluster("h100", 8, 4, "tcp")
DOMAIN = domain_of(chain_graph(((8000, 8000),)), cluster("h100", 8, 4, "infiniband"), 1e-3)


def all_reduced(domain: Domain, *knobs: NcclKnobs) -> Strategy:
    """Each variable by itself."""
    return strategy_of(domain, AllReduce).carrying(*knobs)


def predicted(domain: Domain, *knobs: NcclKnobs) -> float:
    population = encode([all_reduced(domain, *knobs)], domain)
    return float(TimelineSimulator().predict(domain, population)[0])


def test_a_forced_algorithm_takes_its_own_time() -> None:
    slow = NcclKnobs((NcclRange("all_reduce", "Ring", "LL"),))
    gained = predicted(DOMAIN, slow) - predicted(DOMAIN)
    sizes = np.array([DOMAIN.graph.size_bytes], dtype=np.float64)
    own, forced = (
        collective_times(topology_of(each), "all_reduce", sizes)
        for each in (DOMAIN.cluster, replace(DOMAIN.cluster, nccl=slow))
    )
    assert (forced.algorithm, forced.protocol) == (("Ring",), ("LL",))
    assert gained == pytest.approx(forced.seconds[0] - own.seconds[0], rel=0.05)


def test_each_range_holds_from_its_size_on() -> None:
    knobs = NcclKnobs(
        (
            NcclRange("all_reduce", "Tree", "LL", least_bytes=4096),
            NcclRange("all_reduce", "Ring", "Simple", least_bytes=1 << 22),
        )
    )
    topology = topology_of(replace(DOMAIN.cluster, nccl=knobs))
    sizes = np.array([1024.0, 4096.0, 2.0**22 - 1, 2.0**22])
    times = collective_times(topology, "all_reduce", sizes)
    own = collective_times(topology_of(DOMAIN.cluster), "all_reduce", sizes)
    assert times.seconds[0] == own.seconds[0]
    assert times.algorithm[1:] == ("Tree", "Tree", "Ring")
    assert times.protocol[1:] == ("LL", "LL", "Simple")


def test_fewer_ctas_slow_messages_and_give_compute_back() -> None:
    """Where compute hides the messages, fewer of them are faster."""
    few = NcclKnobs(max_ctas=4)
    assert predicted(DOMAIN, few) > predicted(DOMAIN)
    assert predicted(DOMAIN, NcclKnobs(max_ctas=64)) == predicted(DOMAIN)
    felt = replace(DOMAIN.cluster, overlap_slowdown=0.4)
    hidden = domain_of(chain_graph(((1000, 1000),) * 20), felt, 1000.0)
    assert predicted(hidden, few) < predicted(hidden)


def test_more_ctas_than_the_jobs_set_take_more_of_compute() -> None:
    """A cluster's slowdown is that of its jobs, whose limit a strategy may raise."""
    graph = chain_graph(((1000, 1000),) * 20)
    felt = replace(DOMAIN.cluster, overlap_slowdown=0.4, nccl=NcclKnobs(max_ctas=4))
    hidden = domain_of(graph, felt, 1000.0)
    assert predicted(hidden, NcclKnobs(max_ctas=64)) > predicted(hidden)
    assert predicted(hidden, NcclKnobs(max_ctas=4)) == predicted(hidden)


def test_the_analytic_model_knows_what_knobs_change() -> None:
    few = NcclKnobs(max_ctas=4)
    population = encode([all_reduced(DOMAIN), all_reduced(DOMAIN, few)], DOMAIN)
    plain, slower = AnalyticSimulator().predict(DOMAIN, population)
    assert slower > plain
    stated = replace(DOMAIN, cluster=replace(DOMAIN.cluster, nccl=few))
    same = AnalyticSimulator().predict(stated, encode([all_reduced(stated)], stated))
    assert same == pytest.approx([slower])


def test_more_sockets_carry_more_where_connections_hold_messages_back() -> None:
    domain = replace(DOMAIN, cluster=replace(ON_TCP, connection_gbps=1.0))
    sockets = NcclKnobs(socket_threads=2, sockets_per_thread=2)
    assert predicted(domain, sockets) < predicted(domain)


def test_what_a_strategy_leaves_out_is_as_the_clusters_jobs_set_it() -> None:
    jobs = NcclKnobs(socket_threads=4, sockets_per_thread=4)
    domain = replace(DOMAIN, cluster=replace(ON_TCP, connection_gbps=1.0, nccl=jobs))
    assert predicted(domain, NcclKnobs(pxn=False)) == pytest.approx(predicted(domain))
    one = NcclKnobs(socket_threads=1)
    bare = replace(domain, cluster=replace(domain.cluster, nccl=None))
    assert predicted(domain, one) == pytest.approx(predicted(bare))
    assert predicted(domain, one) > predicted(domain)


def test_an_algorithm_that_runs_nowhere_there_is_refused() -> None:
    a100 = replace(DOMAIN, cluster=cluster("a100", 8, 4, "infiniband"))
    with pytest.raises(InvalidInput, match="all_reduce cannot run by algorithm NVLSTree"):
        predicted(a100, NcclKnobs((NcclRange("all_reduce", "NVLSTree", "Simple"),)))


def test_knobs_need_nccl() -> None:
    knobs = NcclKnobs(max_ctas=4)
    verify(all_reduced(DOMAIN, knobs), DOMAIN)
    gloo = domain_of(chain_graph(((8,),)), grid_cluster(2, 1))
    with pytest.raises(InvalidStrategy, match="messages travel by gloo"):
        verify(all_reduced(gloo, knobs), gloo)
    with pytest.raises(InvalidStrategy, match="states nothing"):
        verify(all_reduced(DOMAIN, NcclKnobs()), DOMAIN)


def test_a_bundle_takes_knobs_for_its_groups() -> None:
    knobs = NcclKnobs(max_ctas=4, pxn=False)
    bundle = with_extension(make_bundle(all_reduced(DOMAIN), DOMAIN), knobs)
    assert bundle.plan.extension(NcclKnobs) == knobs
    assert describe(bundle.strategy, DOMAIN) == ["NCCL with at most 4 CTAs, no PXN"]


def test_switches_add_up_plain_sums_alone() -> None:
    """A plan's all-reduces are sums of what packing has multiplied; its reduce-scatters average."""
    of_sums = NcclKnobs((NcclRange("all_reduce", "NVLSTree", "Simple"),))
    of_averages = NcclKnobs((NcclRange("reduce_scatter", "NVLS", "Simple"),))
    verify(all_reduced(DOMAIN, of_sums), DOMAIN)
    verify(ddp(DOMAIN).carrying(of_averages), DOMAIN)
    with pytest.raises(InvalidStrategy, match="NVLS for reduce_scatter, which adds up plain sums"):
        verify(all_reduced(DOMAIN, of_averages), DOMAIN)


def test_exports_state_them() -> None:
    strategy = all_reduced(DOMAIN, NcclKnobs(max_ctas=4))
    ddp = settings_for("ddp", strategy, DOMAIN)
    assert ddp.environment == {"NCCL_MAX_CTAS": "4"}
    assert ddp.strategy_id == strategy.id
    nccl = settings_for("nccl", strategy, DOMAIN)
    assert nccl.settings == {"config": {"max_ctas": 4}}
    assert "options.config.max_ctas = 4" in nccl.snippet
    ranges = NcclKnobs((NcclRange("all_reduce", "Ring", "LL", least_bytes=64),))
    by_size = settings_for("nccl", all_reduced(DOMAIN, ranges), DOMAIN)
    assert by_size.settings["nccl_tuner.conf"].splitlines()[1].endswith(",0,-1,-1")
    assert "all_gather" in by_size.deviations[0]
    with pytest.raises(NotSupported, match="states nothing of NCCL"):
        settings_for("nccl", all_reduced(DOMAIN), DOMAIN)
