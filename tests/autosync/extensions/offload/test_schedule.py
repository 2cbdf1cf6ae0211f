"""Who stays and who leaves, by hand and for drawn spans; what is then held, counted anew."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosync.errors import BudgetTooSmall
from autosync.extensions.offload.schedule import (
    IdleSpans,
    Moments,
    SwapSchedule,
    joined,
    least_budget_bytes,
    make_schedule,
    resident_spans,
    spans_of,
    stall_seconds,
)

LAYERS = 4
"""Layer i runs in moments i and 7 - i; its output of 10 bytes is idle from i + 1 on."""


def layered() -> tuple[IdleSpans, Moments]:
    """Each layer takes a second each way, and 10 bytes of base while it runs (its output)."""
    count = 2 * LAYERS
    rows = [(10.0, i, i + 1, i + 1, count - 1 - i) for i in range(LAYERS)]
    return spans_of(rows), Moments(np.ones(count), np.full(count, 10.0))


SLOW = 10.0
"""An output a second: as fast as a layer."""


def test_with_room_everything_stays() -> None:
    spans, moments = layered()
    schedule = make_schedule(spans, moments, 50.0, SLOW)
    assert schedule.kept.all()
    assert schedule.held_bytes.tolist() == [10, 20, 30, 40, 40, 30, 20, 10]
    assert schedule.moved_bytes == 0
    assert stall_seconds(schedule, moments.seconds, SLOW) == 0


def test_the_tensor_used_soonest_stays() -> None:
    spans, moments = layered()
    # The last layer's output is used again at once: it has no span. The last but one's is next.
    assert spans.tensor.tolist() == [0, 1, 2]
    schedule = make_schedule(spans, moments, 20.0, SLOW)
    assert schedule.kept.tolist() == [False, False, True]
    assert schedule.moved_bytes == 4 * 10
    # Layer 0's output leaves while layer 1 runs, and layer 1's while layer 2 runs. Layer 1's comes
    # back while layer 2's backward runs, layer 0's while layer 1's does.
    assert schedule.release.tolist()[:2] == [2, 3]
    assert schedule.fetch.tolist()[:2] == [6, 5]
    assert stall_seconds(schedule, moments.seconds, SLOW) == 0


def test_state_that_waits_for_an_update_moves_first() -> None:
    """Three tensors of state, idle until a ninth moment which needs them all: what the layers leave
    of the budget holds two."""
    spans, moments = layered()
    states = spans_of([(10.0, i, 0, 0, 2 * LAYERS) for i in range(3)])
    update = Moments(np.ones(2 * LAYERS + 1), np.append(moments.base_bytes, 60.0))
    schedule = make_schedule(joined(spans, states), update, 60.0, SLOW)
    assert schedule.spans.tensor.tolist() == [0, 1, 2, 3, 4, 5]
    assert schedule.kept[:3].all()
    assert schedule.kept[3:].sum() == 2
    (away,) = np.flatnonzero(~schedule.kept)
    assert schedule.release[away] == 1  # it leaves while the first layer runs
    assert schedule.fetch[away] == 7  # and comes back while the last backward does
    assert schedule.held_bytes.tolist() == [40, 40, 50, 60, 60, 50, 40, 40, 60]
    assert stall_seconds(schedule, update.seconds, SLOW) == 0


def test_without_room_for_transfers_compute_waits_for_each() -> None:
    spans, moments = layered()
    schedule = make_schedule(spans, moments, 10.0, SLOW)
    assert not schedule.kept.any()
    assert (schedule.release == spans.begin).all()
    assert (schedule.fetch == spans.end).all()
    assert schedule.held_bytes.tolist() == [10.0] * 8
    assert stall_seconds(schedule, moments.seconds, SLOW) == 6.0


def test_a_budget_that_holds_no_step_is_refused_with_the_least_that_works() -> None:
    spans, moments = layered()
    assert least_budget_bytes(moments) == 10
    with pytest.raises(BudgetTooSmall, match="takes 10 bytes") as refused:
        make_schedule(spans, moments, 9.0, SLOW)
    assert "Give 10 bytes" in refused.value.remedy


def test_data_of_the_peak_is_kept_first() -> None:
    # Moment 3 has room for one of the two. Tensor 1 is used sooner after it is idle, but tensor 0
    # would have to come back in moment 6, which is the fullest.
    spans = spans_of([(20.0, 0, 1, 1, 7), (20.0, 1, 2, 2, 5)])
    base = np.array([10.0, 10.0, 10.0, 55.0, 10.0, 10.0, 60.0, 10.0])
    kept = resident_spans(spans, Moments(np.ones(8), base), 90.0)
    assert kept.tolist() == [True, False]


def test_the_host_has_a_tensor_once_however_often_it_is_used() -> None:
    # Used in moments 3 and 6; nothing else is on the device.
    spans = spans_of([(10.0, 0, 1, 1, 3), (10.0, 0, 3, 4, 6)])
    moments = Moments(np.ones(7), np.array([10.0, 0.0, 0.0, 10.0, 0.0, 0.0, 10.0]))
    schedule = make_schedule(spans, moments, 10.0, 1e9)
    kept = np.zeros(2, dtype=np.bool_)
    assert spans.copied(kept).tolist() == [True, False]
    assert spans.copied(np.array([True, False])).tolist() == [False, True]
    assert schedule.held_bytes.max() <= 10.0


@st.composite
def drawn(draw: st.DrawFn) -> tuple[IdleSpans, Moments, float]:
    """Spans, moments, and a share of the way from the least to the largest budget."""
    count = draw(st.integers(2, 12))
    rows = []
    for tensor in range(draw(st.integers(0, 8))):
        size = float(draw(st.integers(1, 100)))
        uses = sorted(draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=4)))
        final = uses[0] + 1
        for before, after in pairwise(uses):
            rows.append((size, tensor, final, before + 1, after))
            final = after
    seconds = draw(st.lists(st.floats(0, 2), min_size=count, max_size=count))
    base = draw(st.lists(st.floats(0, 200), min_size=count, max_size=count))
    return spans_of(rows), Moments(np.array(seconds), np.array(base)), draw(st.floats(0, 1))


def held_by(schedule: SwapSchedule, moments: Moments) -> list[float]:
    """Bytes of each moment, tensor by tensor and moment by moment."""
    held: list[float] = moments.base_bytes.tolist()
    spans = schedule.spans
    for span in range(len(spans)):
        for moment in range(spans.begin[span], spans.end[span]):
            away = schedule.release[span] <= moment < schedule.fetch[span]
            if schedule.kept[span] or not away:
                held[moment] += float(spans.size_bytes[span])
    return held


@given(drawn(), st.sampled_from([1.0, 30.0, 1e9]))
def test_a_schedule_holds_what_it_says_and_never_more_than_the_budget(
    case: tuple[IdleSpans, Moments, float], rate: float
) -> None:
    spans, moments, share = case
    least = least_budget_bytes(moments)
    budget = least + share * float(spans.size_bytes.sum())
    schedule = make_schedule(spans, moments, budget, rate)
    assert np.allclose(schedule.held_bytes, held_by(schedule, moments))
    assert schedule.peak_bytes <= budget * (1 + 1e-12)
    away = ~schedule.kept
    assert (schedule.release[away] >= spans.begin[away]).all()
    assert (schedule.fetch[away] >= schedule.release[away]).all()
    assert (schedule.fetch[away] <= spans.end[away]).all()
    assert (schedule.copied <= away).all()
    assert set(spans.tensor[away]) == set(spans.tensor[schedule.copied])
    stalled = stall_seconds(schedule, moments.seconds, rate)
    assert 0 <= stalled <= schedule.moved_bytes / rate * (1 + 1e-9) + 1e-9


@given(drawn())
def test_an_infinitely_fast_link_costs_nothing(case: tuple[IdleSpans, Moments, float]) -> None:
    spans, moments, _ = case
    link = float("inf")
    schedule = make_schedule(spans, moments, float(least_budget_bytes(moments)), link)
    assert stall_seconds(schedule, moments.seconds, link) == 0
