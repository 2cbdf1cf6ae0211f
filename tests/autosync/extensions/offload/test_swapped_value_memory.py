"""What swapping values leaves on a device and what it costs, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.domain import Domain, Optimizer
from autosync.errors import BudgetTooSmall, InvalidStrategy
from autosync.extensions.offload.document import Offload
from autosync.extensions.offload.prediction import idle_tensors, idle_values, swaps_of_ranks
from autosync.population import encode
from autosync.simulator.analytic import AnalyticSimulator
from autosync.simulator.memory.memory_check import check_memory
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.message_digests import digests_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.autosync.extensions.offload.test_swapped_state_memory import (
    GRADIENT,
    MODEL,
    OUTPUT,
    STEP,
    heavy,
    peak,
    within,
)

VALUE = 2_000_000
"""Of one of the four variables."""
STEP_MOMENT = 8
"""Behind four operations forward and four backward."""


def by_sgd(domain: Domain) -> Domain:
    return replace(domain, optimizer=Optimizer("sgd", True, 0))


def spans_by_variable(domain: Domain) -> dict[int, list[tuple[int, int]]]:
    spans = idle_values(domain)
    assert (spans.size_bytes == VALUE).all()
    assert (spans.final == 0).all()
    found: dict[int, list[tuple[int, int]]] = {}
    for variable, begin, end in zip(spans.tensor, spans.begin, spans.end, strict=True):
        found.setdefault(int(variable), []).append((int(begin), int(end)))
    return found


def test_values_are_idle_between_forward_backward_and_step() -> None:
    # Operation i runs forward in moment i and backward in moment 7 - i. The first one reads nothing
    # that needs a gradient, and keeps no value for its backward. The last one's is used again at
    # once.
    assert spans_by_variable(heavy()) == {
        0: [(1, STEP_MOMENT)],
        1: [(0, 1), (2, 6), (7, STEP_MOMENT)],
        2: [(0, 2), (3, 5), (6, STEP_MOMENT)],
        3: [(0, 3), (5, STEP_MOMENT)],
    }


def test_what_keeps_no_value_for_its_backward_leaves_it_idle() -> None:
    plain = heavy()
    operations = tuple(replace(each, type="embedding") for each in plain.graph.operations)
    domain = replace(plain, graph=replace(plain.graph, operations=operations))
    found = spans_by_variable(domain)
    assert found[1] == [(0, 1), (2, STEP_MOMENT)]
    assert found[3] == [(0, 3), (4, STEP_MOMENT)]


def test_a_value_that_two_operations_read_is_idle_between_them() -> None:
    plain = heavy()
    first, *others, last = plain.graph.operations
    operations = (first, *others, replace(last, variables=(1, 3)))
    domain = replace(plain, graph=replace(plain.graph, operations=operations))
    assert spans_by_variable(domain)[1] == [(0, 1), (2, 3), (5, 6), (7, STEP_MOMENT)]


def test_small_values_stay() -> None:
    small = heavy()
    variables = tuple(replace(v, shape=(4, 4)) for v in small.graph.variables)
    assert len(idle_values(replace(small, graph=replace(small.graph, variables=variables)))) == 0


def test_peaks_with_and_without_values() -> None:
    # Beside state and buffers: with activations away three outputs and a gradient, and one value in
    # place of four. With state away as well the step is the fullest moment, which needs everything.
    domain = heavy()
    least = 3 * MODEL + VALUE + 3 * OUTPUT + GRADIENT
    assert peak(domain, Offload(1, values=True)) == pytest.approx(least, abs=300)
    assert peak(domain, Offload(1, True, True)) == pytest.approx(4 * MODEL + STEP, abs=300)
    assert peak(domain, Offload(10**9, True, True)) == peak(domain, None)


def test_transfers_of_values_take_the_link() -> None:
    domain = by_sgd(heavy(operation_seconds=1e-5))
    least = int(np.ceil(peak(domain, Offload(1, values=True))))
    chosen = [None, Offload(least, values=True), Offload(10**9), Offload(10**9, values=True)]
    population = encode([within(domain, swap) for swap in chosen], domain)
    plans = compile_plans_fast(population, domain)
    memory = memory_of(domain)
    tight, *_ = swaps_of_ranks(memory, plans, population, 1, Offload(least, values=True))
    activations = 1 + int(idle_tensors(domain)[0].at(1.0).tensor.max())
    away = tight.schedule.spans.tensor[~tight.schedule.kept]
    assert (away >= activations).any()
    assert tight.stall_seconds > 0
    assert tight.schedule.peak_bytes <= least
    for simulator in (AnalyticSimulator(), TimelineSimulator()):
        plain, moved, *all_stay = simulator.predict(domain, population)
        assert moved - plain == pytest.approx(tight.stall_seconds, rel=0.05)
        assert all_stay == [plain, plain]
    assert len(set(digests_of(domain, population))) == len(chosen)


def test_a_budget_that_only_values_away_fit_is_told_so() -> None:
    domain = by_sgd(heavy(memory_gb=0.03))  # less a tenth it holds no three outputs and all values
    with pytest.raises(InvalidStrategy, match="does not fit") as refused:
        check_memory(within(domain, None), domain)
    assert "activations and values swapped" in refused.value.remedy
    assert '{"budget_bytes": 27000000, "values": true}' in refused.value.remedy
    check_memory(within(domain, Offload(27_000_000, values=True)), domain)
    with pytest.raises(BudgetTooSmall, match="does not hold a training step"):
        check_memory(within(domain, Offload(27_000_000)), domain)
