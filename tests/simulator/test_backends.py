"""Traffic between two nodes of two ranks, by hand: what crosses depends on who sends to whom."""

import pytest

from autosync.cluster import Backend
from autosync.codes import Op
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.network import link_seconds_per_byte
from autosync.strategy import AllReduce, ParameterServer
from tests.domains import domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

EVERYONE = (0, 1, 2, 3)
NIC_BYTES_PER_SECOND = 1e8


@pytest.mark.parametrize(
    ("operation", "backend", "bytes_across"),
    [
        (Op.ALL_REDUCE, "gloo", 1.5),
        (Op.REDUCE_SCATTER, "gloo", 1.0),  # 2 senders, 2 receivers, a quarter each
        (Op.ALL_GATHER, "gloo", 1.0),
        (Op.ALL_GATHER, "nccl", 0.75),  # a ring crosses once, with three quarters
        (Op.FACTOR_ALL_GATHER, "gloo", 4.0),  # 2 senders, 2 receivers, everything
        (Op.SPARSE_ALL_GATHER, "nccl", 4.0),  # ragged messages take gloo on any backend
    ],
)
def test_bytes_across(operation: Op, backend: Backend, bytes_across: float) -> None:
    cluster = cluster_of(2, 2, backend=backend)
    seconds = link_seconds_per_byte(cluster, operation, EVERYONE)
    assert seconds == pytest.approx(bytes_across / NIC_BYTES_PER_SECOND)


def test_several_ranks_that_serve_under_nccl_wait_for_each_other() -> None:
    nccl = domain_of(cluster=cluster_of(4, 1, backend="nccl", servers=2))
    by_ranks = strategy_of(nccl, lambda v: ParameterServer(v % 2, v))
    assert "one after another" in str(backend_of(nccl.cluster).caveat(by_ranks, nccl.cluster))
    for quick in (
        strategy_of(nccl, lambda v: ParameterServer(4 + v % 2, v)),
        strategy_of(nccl, lambda v: ParameterServer(0, v)),
        strategy_of(nccl, AllReduce),
    ):
        assert backend_of(nccl.cluster).caveat(quick, nccl.cluster) is None
    gloo = cluster_of(4, 1, backend="gloo", servers=2)
    assert backend_of(gloo).caveat(by_ranks, gloo) is None
