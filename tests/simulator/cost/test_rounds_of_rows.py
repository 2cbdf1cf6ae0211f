"""Touched rows travel behind a header, by hand. A rate of 0.8 Gbit/s is 100 MB/s."""

import pytest

from autosync.codes import Op
from autosync.population import encode
from autosync.simulator.cost.network import network_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import AllGather, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of


def test_rows_pay_for_their_header_as_well() -> None:
    graph = chain_graph(((1000, 8),), sparse=(0,))
    domain = domain_of(graph, cluster_of(startup=5e-3), 1e-3)
    # Two rows of 40 bytes to three others, and two startups.
    sent = period(domain, strategy_of(domain, AllGather))
    assert sent == pytest.approx([3e-3 + 2 * 5e-3 + 3 * 80 / 1e8])


def test_every_message_of_rows_has_two_rounds_and_no_other() -> None:
    graph = chain_graph(((1000, 8), (16,)), sparse=(0,))
    domain = domain_of(graph, cluster_of(startup=5e-3), 1e-3)
    strategy = strategy_of(domain, lambda v: ParameterServer(0, v))
    plans = compile_plans_fast(encode([strategy], domain), domain)
    network = network_of(domain.cluster, plans.teams)
    startups = network.startup_seconds[network.kinds_of(plans)]
    of_rows = [Op(operation).sparse for operation in plans.operation]
    assert startups == pytest.approx([10e-3 if rows else 5e-3 for rows in of_rows])
