"""Measured timelines: what a real trial records of the plan that it runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from autosync.bundle import Bundle
from autosync.codes import Op
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.plan import Plan
from autosync.trials.commands import RecordedDeal, RecordedMessage, RecordedPass
from autosync.trials.contract import (
    ComputeTimes,
    DealTimes,
    MeasuredTimeline,
    TrialRequest,
    TrialResult,
    Workload,
)
from autosync.trials.iterations import RankRecording, replica_digest
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.measurement import measured_timeline
from autosync.trials.pool.process_pool import ProcessPool
from autosync.trials.scales import scale_plan, surviving_messages
from tests.autosync.trials.strategies import ddp, mixed, small_domain


def recorded(pool: ProcessPool, key: str) -> tuple[Plan, TrialResult, MeasuredTimeline]:
    shipped = mixed(pool.workload.domain)
    result = pool.run(TrialRequest(key, shipped, warmup=1, iterations=4, record=True))
    assert result.error is None
    assert result.timeline is not None
    return shipped.plan, result, result.timeline


def test_every_message_of_the_plan_is_recorded_on_every_rank(pool: ProcessPool) -> None:
    plan, result, timeline = recorded(pool, "recorded")
    assert timeline.clock == "shared"
    assert len(timeline.ranks) == plan.world_size
    assert timeline.step_seconds in result.iteration_seconds
    for rank in timeline.ranks:
        assert rank.messages is not None
        assert sorted(rank.messages.message) == list(range(len(plan.messages)))
        assert list(rank.messages.started_seconds) == sorted(rank.messages.started_seconds)


def test_messages_run_in_backward_and_end_before_the_next(pool: ProcessPool) -> None:
    plan, _, timeline = recorded(pool, "recorded")
    for rank in timeline.ranks:
        times = rank.messages
        assert times is not None
        backward = rank.compute.phase.index("backward")
        ended = dict(zip(times.message, times.ended_seconds, strict=True))
        queued = dict(zip(times.message, times.queued_seconds, strict=True))
        for message, start in zip(times.message, times.started_seconds, strict=True):
            assert rank.compute.start_seconds[backward] <= queued[message] <= start
            assert start <= ended[message] <= rank.compute.stop_seconds[-1]
            before = plan.messages[message].after
            assert before < 0 or ended[before] <= queued[message]
        for index, message_of in enumerate(plan.messages):
            if message_of.gate < 0:  # `step()` itself waited for it
                assert ended[index] <= rank.compute.stop_seconds[-2]


def test_compute_is_told_without_gaps(pool: ProcessPool) -> None:
    _, _, timeline = recorded(pool, "recorded")
    starts = []
    for rank in timeline.ranks:
        compute = rank.compute
        spans = list(zip(compute.start_seconds, compute.stop_seconds, strict=True))
        assert all(start < stop for start, stop in spans)
        assert all(one[1] == other[0] for one, other in pairwise(spans))
        told = [phase for phase in compute.phase if phase != "wait"]
        passes = [
            phase for phase, before in zip(told, ["", *told], strict=False) if phase != before
        ]
        assert passes == ["forward", "backward", "update", "forward"]
        starts.append(spans[0][0])
        # sleeps of 6 operations, 0.2 ms forward and 0.4 ms backward, until absolute deadlines
        *_, done = (s for s, phase in zip(spans, compute.phase, strict=True) if phase == "backward")
        assert done[1] - spans[0][0] > 0.8 * 6 * 6e-4
    assert max(starts) == 0.0


def test_the_nics_carry_what_the_messages_say(pool: ProcessPool) -> None:
    """Two ranks: in an all-reduce each sends its payload once, in a reduce-scatter or an
    all-gather half of it; a push or pull is sent by one of them."""
    plan, result, _ = recorded(pool, "recorded")
    if not pool.shaped:
        assert result.sent_bytes == ()
        return
    shipped = scale_plan(plan, pool.workload.domain.graph, pool.workload.byte_scale)
    sent = [0.0, 0.0]
    for message in shipped.messages:
        for rank in range(2):
            match message.operation:
                case Op.ALL_REDUCE:
                    sent[rank] += message.wire_bytes
                case Op.REDUCE_SCATTER | Op.ALL_GATHER:
                    sent[rank] += message.wire_bytes / 2
                case Op.PUSH:
                    sent[rank] += message.wire_bytes * (rank != message.root)
                case Op.PULL:
                    sent[rank] += message.wire_bytes * (rank == message.root)
    for payload, carried in zip(sent, result.sent_bytes, strict=True):
        assert payload < carried < 1.5 * payload + 20_000


def test_ddp_says_nothing_of_its_messages(pool: ProcessPool) -> None:
    shipped = ddp(pool.workload.domain)
    result = pool.run(TrialRequest("recorded ddp", shipped, warmup=1, iterations=3, record=True))
    assert result.error is None
    assert result.timeline is not None
    for rank in result.timeline.ranks:
        assert rank.messages is None
        assert rank.compute.phase == ("forward", "backward", "update", "forward")


def test_a_timeline_is_recorded_only_on_request(pool: ProcessPool) -> None:
    result = pool.run(TrialRequest("silent", mixed(pool.workload.domain), iterations=2))
    assert result.error is None
    assert result.timeline is None


def test_the_document_comes_back_as_it_was(pool: ProcessPool) -> None:
    _, result, _ = recorded(pool, "recorded")
    assert from_json(TrialResult, to_json(result)) == result


def noted(
    zero: float, messages: tuple[RecordedMessage, ...] | None = None
) -> tuple[list[float], RecordedPass]:
    """Three iterations of 1.0 s, 1.1 s and 1.3 s after a warm-up of 5 s; forward takes 0.2 s,
    backward 0.5 s."""
    starts = [zero + at for at in (0.0, 5.0, 6.0, 7.1, 8.4)]
    waits = ((6.1, 6.15), (6.6, 6.8), (7.05, 7.2))
    recording = RecordedPass(
        begins=tuple(start + 0.01 for start in starts[:-1]),
        forwards=tuple(start + 0.2 for start in starts[:-1]),
        backwards=tuple(start + 0.7 for start in starts[:-1]),
        waits=tuple((zero + begin, zero + end) for begin, end in waits),
        messages=messages,
    )
    return starts, recording


def test_the_usual_iteration_is_kept_in_the_domains_time() -> None:
    one = RecordedMessage(2, 1, 6.3, 6.4, 7.2)
    early = RecordedMessage(1, 1, 5.3, 5.4, 5.6)
    late = RecordedMessage(3, 0, 7.3, 7.4, 7.6)
    starts, recording = noted(0.0, (late, one, early))
    timeline = measured_timeline([starts], [recording], ["a"], 1, 2.0, (0, 5))
    assert timeline.step_seconds == pytest.approx(0.55)
    (rank,) = timeline.ranks
    assert rank.messages is not None
    assert rank.messages.message == (5,)
    assert rank.messages.queued_seconds == (0.15,)
    assert rank.messages.started_seconds == (0.2,)
    assert rank.messages.ended_seconds == (0.6,)
    assert rank.compute.phase == (
        *("forward", "wait", "forward", "backward", "wait"),
        *("wait", "update", "wait", "wait", "forward"),
    )
    assert rank.compute.stop_seconds == pytest.approx(
        [0.05, 0.075, 0.1, 0.3, 0.35, 0.4, 0.525, 0.55, 0.6, 0.65]
    )


def test_of_several_batches_the_last_is_kept() -> None:
    """Two hosts; a second batch begins 0.8 s after the first, on the other host 0.01 s later."""
    first, _ = noted(0.0)
    behind = 0.8
    starts = [start * 2 for start in first]  # periods of 2.0 s, 2.2 s and 2.6 s
    recordings = []
    for zero, late in ((0.0, 0.0), (1000.0, 0.01)):
        begun = [start + zero for start in starts]
        recordings.append(
            RecordedPass(
                begins=tuple(t + at for t in begun[:-1] for at in (0.01, behind + late)),
                forwards=tuple(t + at for t in begun[:-1] for at in (0.2, behind + 0.2)),
                backwards=tuple(t + behind + 0.7 for t in begun[:-1]),
                waits=(),
                messages=(RecordedMessage(2, 0, begun[2] + 1.2, begun[2] + 1.3, begun[2] + 2.0),),
            )
        )
    rank_starts = [starts, [start + 1000.0 for start in starts]]
    timeline = measured_timeline(rank_starts, recordings, ["a", "b"], 1, 1.0, (0,))
    assert timeline.step_seconds == pytest.approx(2.2 - behind - 0.01)
    for rank in timeline.ranks:
        assert rank.compute.phase == ("forward", "backward", "update", "forward")
        assert rank.compute.start_seconds[0] == 0.0
    assert timeline.ranks[0].compute.stop_seconds == pytest.approx([0.2, 0.7, 1.4, 1.6])
    assert timeline.ranks[0].messages is not None
    assert timeline.ranks[0].messages.ended_seconds == pytest.approx([1.2])


@pytest.mark.parametrize("of", [mixed, ddp])
def test_a_trial_of_several_batches_records_the_last(of: Callable[[Domain], Bundle]) -> None:
    domain = replace(small_domain(), accumulate=3)
    shipped = of(domain)
    with LocalLauncher().open(Workload(domain)) as opened:
        result = opened.run(TrialRequest("several", shipped, warmup=1, iterations=4, record=True))
    assert result.error is None
    timeline = result.timeline
    assert timeline is not None
    # sleeps until absolute deadlines: two batches of 6 operations, 0.2 ms forward, 0.4 ms backward
    assert timeline.step_seconds < max(result.iteration_seconds) - 0.8 * 2 * 6 * 6e-4
    for rank in timeline.ranks:
        told = [phase for phase in rank.compute.phase if phase != "wait"]
        assert list(dict.fromkeys(told)) == ["forward", "backward", "update"]
        assert told[-1] == "forward"
        if rank.messages is None:
            assert of is ddp
            continue
        assert sorted(rank.messages.message) == list(range(len(shipped.plan.messages)))
        backward = rank.compute.phase.index("backward")
        assert min(rank.messages.queued_seconds) >= rank.compute.start_seconds[backward]


def test_passes_that_are_not_one_a_batch_are_no_recording() -> None:
    def recorded_of(*begins: float, backwards: Sequence[float] = (0.9,)) -> RecordedPass | None:
        recording = RankRecording(
            begins=list(begins),
            forwards=[begun + 0.1 for begun in begins],
            backwards=list(backwards),
        )
        return recording.recorded([0.0, 1.0], "autosync", 0, 2)

    assert recorded_of(0.1, 0.5) is not None
    assert recorded_of(0.1) is None
    assert recorded_of(0.1, 0.3, 0.5) is None
    assert recorded_of(0.1, 0.5, backwards=(0.4,)) is None


def test_deals_of_the_shown_passes_are_kept_without_the_byte_scale() -> None:
    starts, recording = noted(0.0, ())
    shown = (
        RecordedDeal("all_gather", 6.1, 6.11, 16),
        RecordedDeal("all_to_all", 6.11, 6.15, 400),
        RecordedDeal("all_to_all", 7.2, 7.28, 300),  # in the forward pass after it
    )
    before, behind = (
        RecordedDeal("all_to_all", 5.1, 5.2, 9),
        RecordedDeal("all_to_all", 7.5, 8.0, 9),
    )
    recording = replace(recording, deals=(before, *shown, behind))
    timeline = measured_timeline([starts], [recording], ["a"], 1, 2.0, (), 0.5)
    (rank,) = timeline.ranks
    assert rank.deals == DealTimes(
        ("all_gather", "all_to_all", "all_to_all"),
        (0.05, 0.055, 0.6),
        (0.055, 0.075, 0.64),
        (16, 800, 600),
    )
    assert from_json(MeasuredTimeline, to_json(timeline)) == timeline


def test_ranks_that_deal_otherwise_than_others_are_refused() -> None:
    starts, recording = noted(0.0, ())
    dealing = replace(recording, deals=(RecordedDeal("all_to_all", 6.1, 6.2, 8),))
    with pytest.raises(InvalidInput, match="deals by rank have lengths \\[1, 0\\]"):
        measured_timeline([starts, starts], [dealing, recording], ["a", "a"], 1, 1.0, ())


def test_clocks_of_several_hosts_are_aligned_at_the_forward_start() -> None:
    first, recorded_first = noted(0.0)
    other, recorded_other = noted(1000.0)
    behind = [start + 0.01 for start in other]  # forward starts later
    starts, recordings = [first, behind, other], [recorded_first, recorded_other, recorded_other]
    timeline = measured_timeline(starts, recordings, ["a", "b", "b"], 1, 1.0, ())
    assert timeline.clock == "by host"
    firsts = [rank.compute.start_seconds[0] for rank in timeline.ranks]
    assert firsts == pytest.approx([0.0, 0.0, -0.01])
    assert measured_timeline(starts[1:], recordings[1:], ["b", "b"], 1, 1.0, ()).clock == "shared"


def test_messages_keep_their_place_in_the_plan_when_small_ones_vanish() -> None:
    domain = small_domain()
    plan, scale = mixed(domain).plan, 1 / 16
    kept = surviving_messages(plan, domain.graph, scale)
    shipped = scale_plan(plan, domain.graph, scale)
    assert len(kept) == len(shipped.messages) < len(plan.messages)
    for place, message in zip(kept, shipped.messages, strict=True):
        whole = plan.messages[place]
        bare = replace(whole, after=-1, bucket=0, wire_bytes=0)
        assert replace(message, after=-1, bucket=0, wire_bytes=0) == bare


def test_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"lengths \[1, 2, 1\]"):
        ComputeTimes(("forward",), (0.0, 1.0), (1.0,))


def test_replicas_have_a_digest_whatever_the_order_of_their_values_in_memory() -> None:
    model = nn.Conv2d(3, 4, 3)
    plain = replica_digest(model)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    assert not model.weight.is_contiguous()
    assert replica_digest(model) == plain
    with torch.no_grad():
        model.weight[-1, -1, -1, -1] += 1.0
    assert replica_digest(model) != plain


def test_replicas_have_a_digest_whatever_types_their_values_have() -> None:
    model = nn.Linear(2, 2)
    small = nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn), requires_grad=False)
    waves = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    model.register_parameter("small", small)
    model.register_parameter("waves", waves)
    plain = replica_digest(model)
    with torch.no_grad():
        waves.add_(1j)
    assert replica_digest(model) == pytest.approx(plain + 2.0)


def test_tables_that_forward_passes_renormalize_have_no_part_in_the_digest() -> None:
    table = nn.Embedding(4, 2, max_norm=0.1)
    model = nn.Sequential(table, nn.Linear(2, 2))
    plain = replica_digest(model)
    model(torch.tensor([0, 3]))
    assert replica_digest(model) == plain
    assert replica_digest(table) == 0.0
