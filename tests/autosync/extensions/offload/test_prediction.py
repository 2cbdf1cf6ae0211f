"""What swapping activations, and optimizer state too, leaves on a device and what it costs, by
hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Device
from autosync.domain import Domain, Optimizer
from autosync.errors import BudgetTooSmall, InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.prediction import (
    idle_activations,
    idle_states,
    swap_budget_bytes,
    swaps_of_ranks,
)
from autosync.graph import Operation
from autosync.nccl_knobs import NcclKnobs
from autosync.population import encode
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.explanation import explain
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.memory.memory_check import check_memory, fitting_rows
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.message_digests import digests_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.simulator.timeline.what_if import WHAT_IFS, timeline_times, what_ifs
from autosync.strategy import AllReduce, ReduceScatter, Strategy
from tests.domains import chain_graph, domain_of
from tests.simulator.worked_examples import cluster_of, strategy_of

OUTPUT = 1_000_000
VARIABLE = (16,)
FIXED = 2 * 4 * 64
"""Values of four variables of 64 bytes, and the buffer their gradients lie in; plain SGD."""


LARGE_OUTPUT = 4_000_000
MODEL = 4 * 2_000_000
"""Bytes of the four variables of `heavy`. Beside them lie buffers of as many bytes and, under
AdamW, state of twice as many."""
GRADIENT = 2_000_000
"""Of one variable, in a tensor of its own before it is in a buffer."""
STEP = 2 * 2_000_000
"""What AdamW takes for itself on a CPU: two tensors of one variable after the other."""


def chain(
    variable: tuple[int, ...],
    output_bytes: int,
    gbps: float,
    device: Device,
    optimizer: Optimizer,
    operation_seconds: float,
) -> Domain:
    """Four operations with a variable each, on four devices."""
    graph = chain_graph((variable,) * 4)
    operations = tuple(replace(each, output_bytes=output_bytes) for each in graph.operations)
    cluster = cluster_of(gbps=gbps, intra_gbps=gbps)
    nodes = tuple(replace(node, devices=(device,)) for node in cluster.nodes)
    graph, cluster = replace(graph, operations=operations), replace(cluster, nodes=nodes)
    return domain_of(graph, cluster, operation_seconds, optimizer)


def four(
    memory_gb: float | None = None, operation_seconds: float = 1e-3, device_type: str = "arena"
) -> Domain:
    """Outputs of a megabyte and next to no variables, under plain SGD."""
    device = Device(device_type, memory_gb=memory_gb)
    return chain(VARIABLE, OUTPUT, 10.0, device, Optimizer("sgd", True, 0), operation_seconds)


def heavy(
    memory_gb: float | None = None,
    operation_seconds: float = 1e-3,
    output_bytes: int = LARGE_OUTPUT,
) -> Domain:
    """Outputs of 4 MB and variables of 2 MB, under AdamW, over links that take next to no time."""
    device = Device("arena", memory_gb=memory_gb)
    adamw = Optimizer("adamw", True, 2)
    return chain((1000, 500), output_bytes, 1e5, device, adamw, operation_seconds)


def within(domain: Domain, swap: Offload | int | None) -> Strategy:
    """swap: or the budget of activations alone."""
    plain = strategy_of(domain, lambda v: AllReduce(0))
    if swap is None:
        return plain
    return plain.carrying(Offload(swap) if isinstance(swap, int) else swap)


def peak(domain: Domain, swap: Offload | int | None) -> float:
    population = encode([within(domain, swap)], domain)
    (peaks,) = memory_of(domain).peak_bytes(compile_plans_fast(population, domain), population)
    assert (peaks == peaks[0]).all()
    return float(peaks[0])


def test_idle_activations_of_a_chain() -> None:
    # Operation i multiplies the output of i - 1 and keeps it; backward passes run 3, 2, 1, 0 in the
    # moments 4 to 7. The third output is used in moments 3 and 4: never idle. The last is not kept.
    spans = idle_activations(four().graph, on_gpu=False).spans
    assert spans.tensor.tolist() == [0, 1]
    assert spans.final.tolist() == [1, 2]
    assert spans.begin.tolist() == [2, 3]
    assert spans.end.tolist() == [6, 5]


def test_tensors_read_only_by_their_own_backward_are_idle_at_once() -> None:
    graph = four().graph
    pool = replace(graph.operations[1], type="max_pool2d_with_indices", variables=())
    pooled = replace(graph, operations=(graph.operations[0], pool, *graph.operations[2:]))
    spans = idle_activations(pooled, on_gpu=False).spans
    rows = list(zip(spans.tensor.tolist(), spans.begin, spans.end, spans.size_bytes, strict=True))
    assert rows == [
        (0, 2, 6, pytest.approx(OUTPUT)),
        (1, 3, 5, pytest.approx(OUTPUT / 3)),
        (4 + 1, 2, 6, pytest.approx(OUTPUT * 2 / 3)),
    ]


def test_small_activations_stay() -> None:
    idle = idle_activations(four().graph, on_gpu=False)
    assert len(idle.at(1.0)) == 2
    assert len(idle.at(0.01)) == 0
    assert idle.at(0.5).size_bytes.tolist() == [OUTPUT / 2] * 2


def test_peaks_with_swapping() -> None:
    # Without: four outputs live at once. With both idle ones away: at most three in moment 5, where
    # backward holds two inputs that were kept and makes a gradient.
    domain = four()
    assert peak(domain, None) == pytest.approx(FIXED + 4 * OUTPUT, abs=300)
    least = peak(domain, 1)
    assert least == pytest.approx(FIXED + 3 * OUTPUT, abs=300)
    assert peak(domain, 3_500_000) == 3_500_000
    assert peak(domain, 10**9) == peak(domain, None)


def test_transfers_that_compute_waits_for_lengthen_the_iteration() -> None:
    domain = four(operation_seconds=1e-5)
    least = int(np.ceil(peak(domain, 1)))
    strategies = [within(domain, None), within(domain, least), within(domain, 10**9)]
    population = encode(strategies, domain)
    plans = compile_plans_fast(population, domain)
    (held,) = memory_of(domain).moment_bytes(plans, population, [1])
    ranks = swaps_of_ranks(domain, population, 1, held, Offload(least))
    stalled = ranks[0].stall_seconds
    assert stalled > 0
    plain, swapped, roomy = AnalyticSimulator().predict(domain, population)
    assert swapped - plain == pytest.approx(stalled)
    assert roomy == plain
    plain, swapped, roomy = TimelineSimulator().predict(domain, population)
    assert swapped - plain == pytest.approx(stalled, rel=0.05)
    assert roomy == plain
    explained = explain(domain, strategies[1])
    assert explained.step_seconds == pytest.approx(swapped)
    assert explained.peak_memory_bytes[0] <= least
    assert len(set(digests_of(domain, population))) == 3


def test_compute_waits_for_transfers_beside_knobs_of_nccl_as_without() -> None:
    on_gloo = four(operation_seconds=1e-5)
    domain = replace(on_gloo, cluster=replace(on_gloo.cluster, backend="nccl"))
    swapped = within(domain, int(np.ceil(peak(domain, 1))))
    strategies = [within(domain, None), swapped, swapped.carrying(NcclKnobs(pxn=False))]
    population = encode(strategies, domain)
    for simulator in (AnalyticSimulator(), TimelineSimulator()):
        plain, waiting, both = simulator.predict(domain, population)
        assert both == pytest.approx(waiting)
        assert waiting > plain


def test_a_budget_too_small_is_refused_with_the_least_that_works() -> None:
    domain = four()
    least = int(np.ceil(peak(domain, 1)))
    check_memory(within(domain, least), domain)
    with pytest.raises(InvalidStrategy, match=f"needs {least:,} bytes"):
        check_memory(within(domain, least - 1), domain)
    with pytest.raises(BudgetTooSmall, match="does not hold a training step"):
        TimelineSimulator().predict(domain, encode([within(domain, least - 1)], domain))


def test_a_strategy_that_does_not_fit_names_the_swapping_that_would() -> None:
    domain = four(memory_gb=0.0035)
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(within(domain, None), domain)
    assert '"swap": {"budget_bytes": 3150000}' in refused.value.remedy
    check_memory(within(domain, 3_500_000), domain)
    both = encode([within(domain, None), within(domain, 3_500_000)], domain)
    assert fitting_rows(domain, both).tolist() == [1]
    with pytest.raises(InvalidStrategy, match="does not fit"):
        check_memory(within(domain, 4_000_000), domain)


@pytest.mark.parametrize(("memory_gb", "device_type"), [(0.002, "arena"), (0.0035, "cpu")])
def test_swapping_is_not_suggested_where_it_does_not_help(
    memory_gb: float, device_type: str
) -> None:
    """A CPU's memory is the host's own."""
    domain = four(memory_gb, device_type=device_type)
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(within(domain, None), domain)
    assert "swap" not in refused.value.remedy


def test_the_budget_leaves_a_reserve_of_the_smallest_device() -> None:
    assert swap_budget_bytes(four(0.0035)) == 3_150_000
    assert swap_budget_bytes(four()) is None
    assert swap_budget_bytes(four(0.0035, device_type="cpu")) is None
    assert swap_budget_bytes(four(device_type="v100")) == 28_800_000_000


def test_an_activation_that_is_used_without_pause_is_never_idle() -> None:
    graph = four().graph
    relu = Operation("relu", "relu", 0, 0, OUTPUT, True, (0,))
    last = replace(graph.operations[1], inputs=(1,), variables=(1,))
    small = replace(
        graph,
        operations=(graph.operations[0], relu, last),
        variables=graph.variables[:2],
        backward_order=(2, 1, 0),
        gradient_order=(1, 0),
        gradient_after=(0, 2),
    )
    # relu keeps its output, which the last operation keeps as well: used in moments 2, 3 and 4.
    assert len(idle_activations(small, on_gpu=False).spans) == 0


def test_features_begin_with_the_timelines_seconds_of_a_swapping_strategy() -> None:
    domain = four(operation_seconds=1e-5)
    least = int(np.ceil(peak(domain, 1)))
    population = encode([within(domain, None), within(domain, least)], domain)
    base = features_of(domain, population).base_seconds
    assert base == pytest.approx(TimelineSimulator().predict(domain, population))
    assert base[1] > base[0]


def test_what_if_predictions_include_waits_for_transfers() -> None:
    """The same change of a cluster is a smaller part of an iteration that waits; and waits do not
    grow with compute."""
    domain = four(operation_seconds=1e-5)
    least = int(np.ceil(peak(domain, 1)))
    population = encode([within(domain, None), within(domain, least)], domain)
    plans = compile_plans_fast(population, domain)
    times = timeline_times(plans, population, domain)
    assert times.seconds == pytest.approx(TimelineSimulator().predict(domain, population))
    changed = what_ifs(plans, population, domain, times.seconds)
    for name in ("bandwidth", "copies_all_reduce", "compute"):
        plain, swapping = changed[:, WHAT_IFS.index(name)]
        assert 0 < swapping < plain, name


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
    # left where a gradient is made. With state away as well the step is
    # the fullest moment.
    domain = heavy()
    assert peak(domain, None) == pytest.approx(4 * MODEL + 4 * LARGE_OUTPUT + GRADIENT, abs=300)
    assert peak(domain, Offload(1)) == pytest.approx(
        4 * MODEL + 3 * LARGE_OUTPUT + GRADIENT, abs=300
    )
    assert peak(domain, Offload(1, True)) == pytest.approx(4 * MODEL + STEP, abs=300)
    assert peak(domain, Offload(10**9, True)) == peak(domain, None)


def test_swapped_state_occupies_the_link_between_updates() -> None:
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
    moments = memory_of(domain).moment_bytes(plans, population, [1, 4])
    (tight, *_), (roomy, *_) = (
        swaps_of_ranks(domain, population, index, held, swap)
        for index, swap, held in zip((1, 4), (chosen[1], chosen[4]), moments, strict=True)
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


def test_sharded_updates_are_not_advised_to_swap_state() -> None:
    domain = heavy(memory_gb=0.0245)
    sharded = strategy_of(domain, lambda v: ReduceScatter(0, True))
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(sharded, domain)
    assert "optimizer_state" not in refused.value.remedy
