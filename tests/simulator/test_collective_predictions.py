"""Tables of collectives say what the timeline has a message take."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Backend
from autosync.simulator.collective_predictions import predicted_collectives
from autosync.strategy import AllReduce
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, period, strategy_of


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_collective_takes_what_its_message_takes_alone(backend: Backend) -> None:
    cluster = replace(cluster_of(startup=5e-3, backend=backend), link_seconds_per_send=1e-3)
    domain = domain_of(chain_graph(((250_000,),)), cluster, 0.0)
    # A startup, six sends over every link, and 1.5 MB at 100 MB/s.
    alone = period(domain, strategy_of(domain, AllReduce))
    assert alone == pytest.approx([0.005 + 0.006 + 0.015])
    found = predicted_collectives(cluster, "all_reduce", np.array([1e6]))
    assert found.seconds == pytest.approx(alone)


def test_what_holds_links_besides_the_bytes_is_not_called_a_startup() -> None:
    starting, sending = cluster_of(startup=5e-3), cluster_of(startup=0.0)
    sending = replace(sending, link_seconds_per_send=1e-3)
    small = np.array([4.0])
    assert predicted_collectives(starting, "all_reduce", small).binding == ("startup",)
    (binding,) = predicted_collectives(sending, "all_reduce", small).binding
    assert binding.startswith("NIC")
