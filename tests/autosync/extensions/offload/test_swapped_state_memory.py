"""What swapping optimizer state leaves on a device and what it costs, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import BudgetTooSmall, InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.prediction import idle_states, swaps_of_ranks
from autosync.population import encode
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.message_digests import digests_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import AllReduce, ReduceScatter, Strategy
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

OUTPUT = 4_000_000
VARIABLE = (1000, 500)
MODEL = 4 * 2_000_000
"""Bytes of four variables. Beside them lie buffers of as many bytes and, under AdamW, state of
twice as many."""
GRADIENT = 2_000_000
"""Of one variable, in a tensor of its own before it is in a buffer."""
STEP = 2 * 2_000_000
"""What AdamW takes for itself on a CPU: two tensors of one variable after the other."""


def heavy(
    memory_gb: float | None = None, operation_seconds: float = 1e-3, output_bytes: int = OUTPUT
) -> Domain:
    """Four operations with outputs of 4 MB and variables of 2 MB, under AdamW, on four devices
    whose links take next to no time."""
    graph = chain_graph((VARIABLE,) * 4)
    operations = tuple(replace(each, output_bytes=output_bytes) for each in graph.operations)
    cluster = cluster_of(gbps=1e5, intra_gbps=1e5)
    device = Device("arena", memory_gb=memory_gb)
    nodes = tuple(replace(node, devices=(device,)) for node in cluster.nodes)
    return domain_of(
        replace(graph, operations=operations),
        replace(cluster, nodes=nodes),
        operation_seconds,
        Optimizer("adamw", True, 2),
    )


def within(domain: Domain, swap: Offload | None) -> Strategy:
    return strategy_of(domain, lambda v: AllReduce(0)).carrying(*([swap] if swap else []))


def peak(domain: Domain, swap: Offload | None) -> float:
    population = encode([within(domain, swap)], domain)
    (peaks,) = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    assert (peaks == peaks[0]).all()
    return float(peaks[0])


def test_state_is_idle_until_the_step() -> None:
    spans = idle_states(heavy())
    assert len(spans) == 4 * 2
    assert (spans.size_bytes == 2_000_000).all()
    assert sorted(spans.tensor.tolist()) == list(range(8))
    assert (spans.begin == 0).all()
    assert (spans.end == 8).all()  # behind four operations forward and four backward
    assert (spans.final == 0).all()


def test_small_state_stays() -> None:
    small = heavy()
    variables = tuple(replace(v, shape=(4, 4)) for v in small.graph.variables)
    assert len(idle_states(replace(small, graph=replace(small.graph, variables=variables)))) == 0


def test_peaks_with_and_without_state() -> None:
    # Plain: four outputs beside values, buffers and state. With activations away three outputs are
    # left (see `test_swapped_memory`) where a gradient is made. With state away as well the step is
    # the fullest moment.
    domain = heavy()
    assert peak(domain, None) == pytest.approx(4 * MODEL + 4 * OUTPUT + GRADIENT, abs=300)
    assert peak(domain, Offload(1)) == pytest.approx(4 * MODEL + 3 * OUTPUT + GRADIENT, abs=300)
    assert peak(domain, Offload(1, True)) == pytest.approx(4 * MODEL + STEP, abs=300)
    assert peak(domain, Offload(10**9, True)) == peak(domain, None)


def test_what_leaves_behind_an_update_and_returns_for_the_next_takes_the_link() -> None:
    domain = heavy(operation_seconds=1e-5)
    least = int(np.ceil(peak(domain, Offload(1, True))))
    activations = int(np.ceil(peak(domain, Offload(1))))
    chosen = [
        None,
        Offload(least, True),
        Offload(activations),
        Offload(activations, True),
        Offload(10**9, True),
    ]
    population = encode([within(domain, swap) for swap in chosen], domain)
    plans = compile_plans_fast(population, domain)
    memory = memory_of(domain)
    (tight, *_), (roomy, *_) = (
        swaps_of_ranks(memory, plans, population, index, swap)
        for index, swap in ((1, chosen[1]), (4, chosen[4]))
        if swap is not None
    )
    away = tight.schedule.spans.end == 8
    away &= ~tight.schedule.kept
    assert away.any()
    assert tight.stall_seconds > 0
    assert tight.schedule.peak_bytes <= least
    assert roomy.schedule.kept.all()
    for simulator in (AnalyticSimulator(), TimelineSimulator()):
        plain, both, alone, either, all_stay = simulator.predict(domain, population)
        assert both - plain == pytest.approx(tight.stall_seconds, rel=0.05)
        assert all_stay == plain
        assert min(alone, either) > plain
    assert len(set(digests_of(domain, population))) == len(chosen)


def test_a_budget_that_only_state_away_fits_is_told_so() -> None:
    domain = heavy(memory_gb=0.041)  # less a tenth it holds the step, and not three outputs
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(within(domain, None), domain)
    assert "activations and optimizer state swapped" in refused.value.remedy
    assert '{"budget_bytes": 36900000, "optimizer_state": true}' in refused.value.remedy
    check_memory(within(domain, Offload(36_900_000, True)), domain)
    with pytest.raises(BudgetTooSmall, match="does not hold a training step"):
        check_memory(within(domain, Offload(36_900_000)), domain)
    both = [within(domain, Offload(36_900_000, state)) for state in (False, True)]
    assert fitting_rows(domain, encode(both, domain)).tolist() == [1]


def test_what_ranks_update_in_parts_is_not_told_to_swap_its_state() -> None:
    domain = heavy(memory_gb=0.0245)
    sharded = strategy_of(domain, lambda v: ReduceScatter(0, True))
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(sharded, domain)
    assert "optimizer_state" not in refused.value.remedy
