"""Which strategies NCCL serves one server after another."""

from autosync.simulator.cost.rank_servers import served_one_by_one
from autosync.strategy import AllReduce, ParameterServer
from tests.domains import domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of


def test_several_ranks_that_serve_under_nccl_wait_for_each_other() -> None:
    nccl = domain_of(cluster=cluster_of(4, 1, backend="nccl", servers=2))
    by_ranks = strategy_of(nccl, lambda v: ParameterServer(v % 2, v))
    assert served_one_by_one(by_ranks, nccl.cluster)
    for quick in (
        strategy_of(nccl, lambda v: ParameterServer(4 + v % 2, v)),
        strategy_of(nccl, lambda v: ParameterServer(0, v)),
        strategy_of(nccl, AllReduce),
    ):
        assert not served_one_by_one(quick, nccl.cluster)
    assert not served_one_by_one(by_ranks, cluster_of(4, 1, backend="gloo", servers=2))
