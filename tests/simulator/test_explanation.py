"""An explanation's parts add up to the iteration, and name what is scarce."""

import dataclasses

import pytest

from autosync.extensions.staleness.document import Staleness
from autosync.simulator.explanation import explain
from autosync.strategy import AllReduce, ParameterServer
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of


def test_parts_by_hand() -> None:
    graph = chain_graph(((250_000,),) * 4)
    domain = domain_of(graph, cluster_of(startup=5e-3, backend="nccl"), 1e-2)
    domain = dataclasses.replace(
        domain, profile=dataclasses.replace(domain.profile, update_seconds=8e-3)
    )
    told = explain(domain, strategy_of(domain, lambda v: AllReduce(0)))
    assert told.compute_seconds == pytest.approx(0.120)
    assert told.update_seconds == pytest.approx(0.008)
    assert told.transfer_seconds == pytest.approx(0.060)
    assert told.startup_seconds == pytest.approx(0.005)
    assert told.step_seconds == pytest.approx(0.193)
    assert told.busiest_seconds == pytest.approx(0.060)
    # The limit hides all but the first gradient's wait and the last one's transfer.
    assert told.limit_seconds < told.step_seconds
    assert "193.0 ms = compute 120.0" in str(told)
    # Parameters, one optimizer state and one buffer of 4 MB each, a gradient on its way into the
    # buffer, and as backward begins three kept outputs and the gradient of one.
    assert told.peak_memory_bytes == pytest.approx([13e6 + 4 * 4096] * 4)
    assert told.ranks_out_of_memory == ()


def test_the_servers_link_is_named() -> None:
    domain = domain_of(chain_graph(((250_000,),) * 4), cluster_of(), 1e-3)
    told = explain(domain, strategy_of(domain, lambda v: ParameterServer(2, 0)))
    assert told.busiest in ("NIC out 10.0.0.2", "NIC in 10.0.0.2")
    assert told.busiest_seconds == pytest.approx(0.120)


def test_late_updates_have_an_account_of_their_seconds() -> None:
    domain = domain_of(chain_graph(((250_000,),) * 4), cluster_of(), 1e-3)
    late = strategy_of(domain, lambda v: ParameterServer(2, 0)).carrying(Staleness(2))
    told = explain(domain, late)
    (seconds,) = period(domain, late)
    assert seconds < told.step_seconds
    ((key, words),) = told.extensions
    assert key == "staleness"
    assert f"takes {seconds * 1e3:.1f} ms" in words
