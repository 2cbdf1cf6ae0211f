import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.population import encode
from autosync.search.designs.known_designs import ps_bandwidth_weighted
from autosync.search.designs.server_placement import (
    byteps_least_busy_link,
    least_busy_link,
    ps_least_busy_link,
)
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import ParameterServer
from autosync.verification import verify
from tests.domains import chain_graph, domain_of, grid_cluster


def shares(gbps: tuple[float, ...]) -> list[float]:
    """Of the bytes, that each rank owns; the pieces are equal."""
    domain = domain_of(chain_graph(((1024, 1024),) * 60), grid_cluster(len(gbps), 1, gbps))
    chosen = least_busy_link(domain)
    owners = [s.server for c in chosen.values() for s in c.shards if isinstance(s, ParameterServer)]
    return [float(n) / len(owners) for n in np.bincount(owners, minlength=len(gbps))]


def test_a_share_makes_all_links_equally_busy() -> None:
    """A link of rate b is held for (1 + (P - 2) x) / b by a share x, in each direction."""
    assert shares((1.0, 1.0, 1.0, 1.0)) == [0.25] * 4
    found = shares((1.0, 1.0, 0.75, 0.75))  # (1 + 2x) / 1 = (1 + 2y) / 0.75, 2x + 2y = 1
    assert np.allclose(found, [5 / 14, 5 / 14, 2 / 14, 2 / 14], atol=0.02)


def test_a_slow_node_owns_nothing() -> None:
    assert shares((2.0, 2.0, 2.0, 1.0))[3] == 0.0


def test_it_beats_owners_in_proportion_to_bandwidth() -> None:
    nodes = [
        Node(f"10.0.0.{i}", (Device("cpu"),), rate, 20.0) for i, rate in enumerate((2, 2, 2, 1))
    ]
    domain = domain_of(chain_graph(((1024, 1024),) * 40), Cluster("uneven", tuple(nodes)))
    both = [ps_bandwidth_weighted(domain), ps_least_busy_link(domain)]
    for strategy in both:
        verify(strategy, domain)
    weighted, placed = TimelineSimulator().predict(domain, encode(both, domain))
    assert placed < 0.9 * weighted


def test_returned_gradients_need_not_wait_for_the_end_of_backward() -> None:
    graph = chain_graph(((1024, 1024),) * 40)
    cluster = grid_cluster(4, 1, (20.0, 20.0, 20.0, 10.0))
    domain = domain_of(graph, cluster, operation_seconds=1e-3)  # 120 ms, beside 134 each way
    both = [ps_least_busy_link(domain), byteps_least_busy_link(domain)]
    values, gradients = TimelineSimulator().predict(domain, encode(both, domain))
    assert gradients < values


def test_sparse_rows_have_owners_too() -> None:
    domain = domain_of(chain_graph(((3000, 64), (64,)), (0,), 2), grid_cluster(2, 2))
    for build in (ps_least_busy_link, byteps_least_busy_link):
        verify(build(domain), domain)
