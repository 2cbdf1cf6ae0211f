"""Memory under `fully_shard`, by hand."""

from dataclasses import replace

import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import InvalidStrategy
from autosync.population import encode
from autosync.search.designs.known_designs import ddp, zero1
from autosync.search.designs.torch_engines import fsdp2, zero2
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.strategy import Strategy
from tests.domains import domain_of, grid_cluster, layered_graph

MEGABYTE = (1000, 250)
LAYERS = 10


def of(memory_gb: float | None = None, nccl: bool = False) -> Domain:
    """Ten blocks of a megabyte and a root of two, on four ranks; Adam. Outputs take 32 KiB."""
    cluster = grid_cluster(4)
    nodes = tuple(
        replace(node, devices=(Device("cpu", memory_gb=memory_gb),)) for node in cluster.nodes
    )
    cluster = replace(cluster, nodes=nodes, backend="nccl" if nccl else "gloo")
    graph = layered_graph((MEGABYTE,) * (LAYERS + 2))
    return domain_of(graph, cluster, optimizer=Optimizer("adamw", True, 2))


def peak_mb(strategy: Strategy, domain: Domain) -> float:
    population = encode([strategy], domain)
    (peaks,) = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    assert peaks.min() == peaks.max()
    return float(peaks[0]) / 1e6


def test_zero3_holds_parts_the_root_and_a_few_units() -> None:
    domain = of()
    # Parts of 12 MB over 4: values 3 and Adam's 6. When the last block but one begins its backward:
    # parts of eight blocks' gradients (2), the buffer of the last reduction (1), the root's values
    # (2), its own (1), the last block's buffer and gloo's copy (2), two gradients (2).
    assert peak_mb(fsdp2(domain), domain) == pytest.approx(9 + 2 + 1 + 2 + 1 + 2 + 2, abs=0.1)


def test_zero2_holds_all_values_from_forward_to_backward() -> None:
    domain = of()
    # Values of 12 MB at the end of the forward pass, with the last unit's buffer.
    least = 9 + 12
    assert least < peak_mb(zero2(domain), domain) < least + 5


def test_sharding_more_takes_less() -> None:
    domain = of(nccl=True)
    order = [peak_mb(make(domain), domain) for make in (fsdp2, zero2, zero1, ddp)]
    assert order == sorted(order)
    assert order[0] < order[3] / 3


def test_what_does_not_fit_names_fsdp2_as_a_way_out() -> None:
    tight = of(memory_gb=0.025)
    strategies = [ddp(tight), fsdp2(tight), zero2(tight)]
    assert fitting_rows(tight, encode(strategies, tight)).tolist() == [1, 2]
    check_memory(fsdp2(tight), tight)
    with pytest.raises(InvalidStrategy) as refused:
        check_memory(ddp(tight), tight)
    assert "parameters in shards as well (fsdp2)" in refused.value.remedy
    assert "and fits" in refused.value.remedy
