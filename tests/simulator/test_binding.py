"""What binds an iteration: the resource that shortens it most where it is faster."""

import pytest

from autosync.domain import Domain
from autosync.population import encode
from autosync.simulator.binding import COMPUTE, STARTUPS, assumed_iteration, binding_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import AllReduce, Strategy
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

GRAPH = chain_graph(((250_000,),) * 4)


def binding(domain: Domain, strategy: Strategy) -> str:
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    found = binding_of(assumed_iteration(plans, population, domain, 0))
    assert 0.0 < found.share <= 1.0
    return found.resource


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_scarce_one_is_named(backend: str) -> None:
    def bound_by(gbps: float, startup: float, seconds: float) -> str:
        cluster = cluster_of(gbps=gbps, startup=startup, backend=backend)  # type: ignore[arg-type]
        domain = domain_of(GRAPH, cluster, seconds)
        return binding(domain, strategy_of(domain, AllReduce))

    assert bound_by(gbps=100.0, startup=1e-6, seconds=1e-2) == COMPUTE
    assert bound_by(gbps=0.1, startup=1e-6, seconds=1e-5).startswith("NIC")
    assert bound_by(gbps=100.0, startup=0.1, seconds=1e-5) == STARTUPS
