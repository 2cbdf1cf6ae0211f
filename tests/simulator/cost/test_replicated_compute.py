"""What replication adds to compute: stragglers, and one more pass of the gradients."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.simulator.cost.fitted_constants import load_constants
from autosync.simulator.cost.replicated_compute import (
    exposed_pass_seconds,
    gradient_bytes,
    straggler_slowdown,
    with_replication_costs,
)
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of

FITTED = replace(load_constants("rtx-2080-ti"), straggler_share=0.0, hidden_share=0.0)
SIZES = ((1_000_000,), (3_000_000,))


def test_every_gradient_passes_a_port_once_more_where_it_becomes_ready() -> None:
    domain = domain_of(chain_graph(SIZES), cluster_of(2, 2, backend="nccl"), 1e-3)
    beside = with_replication_costs(domain, FITTED)
    rate = domain.cluster.nodes[0].intra_bandwidth_gbps or 0.0
    added = np.subtract(beside.profile.backward_seconds, domain.profile.backward_seconds)
    assert added == pytest.approx([4e6 * 8 / (rate * 1e9), 12e6 * 8 / (rate * 1e9)])
    assert beside.profile.forward_seconds == domain.profile.forward_seconds


def test_a_pass_that_runs_beside_compute_costs_nothing() -> None:
    domain = domain_of(chain_graph(SIZES), cluster_of(2, 2, backend="nccl"), 1.0)
    assert exposed_pass_seconds(domain, replace(FITTED, hidden_share=0.4)) == 0.0
    whole = exposed_pass_seconds(domain, FITTED)
    some = whole / 2 / domain.compute_seconds
    assert exposed_pass_seconds(domain, replace(FITTED, hidden_share=some)) == pytest.approx(
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
    slow = replace(FITTED, straggler_share=0.05, hidden_share=0.5)
    domain = with_replication_costs(domain, replace(slow, straggler_share=0.0))
    beside = with_replication_costs(domain, slow)
    slower = 1.0 + straggler_slowdown(4, 0.05)
    assert beside.profile.forward_seconds == pytest.approx(
        [seconds * slower for seconds in domain.profile.forward_seconds]
    )
