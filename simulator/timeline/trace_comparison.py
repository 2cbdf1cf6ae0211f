"""A measured timeline in the form of a predicted one, and where the two differ."""

from dataclasses import dataclass

from autosync.plan import Plan
from autosync.simulator.timeline.iteration_trace import (
    ComputeInterval,
    DealInterval,
    IterationTrace,
    MessageInterval,
)
from autosync.trials.contract import MeasuredTimeline, RankTimeline


def measured_iteration(timeline: MeasuredTimeline, plan: Plan) -> IterationTrace:
    """The recorded iteration as a trace. plan: whose messages were recorded."""
    found: dict[int, list[tuple[int, float, float]]] = {}
    for rank, each in enumerate(timeline.ranks):
        if each.messages is not None:
            times = (each.messages.started_seconds, each.messages.ended_seconds)
            for message, start, end in zip(each.messages.message, *times, strict=True):
                found.setdefault(message, []).append((rank, start, end))
    return IterationTrace(
        step_seconds=timeline.step_seconds,
        iterations=1,
        messages=tuple(_interval(plan, message, found[message]) for message in sorted(found)),
        compute=tuple(
            interval
            for rank, each in enumerate(timeline.ranks)
            for interval in _compute(rank, each)
        ),
        forward_seconds=0.0,
        deals=_deals(timeline),
    )


def _deals(timeline: MeasuredTimeline) -> tuple[DealInterval, ...]:
    """All ranks deal the same, in one order."""
    of_ranks = [each.deals for each in timeline.ranks if each.deals is not None]
    if not of_ranks:
        return ()
    return tuple(
        DealInterval(
            operation,
            sum(each.sent_bytes[place] for each in of_ranks),
            max(each.start_seconds[place] for each in of_ranks),
            max(each.stop_seconds[place] for each in of_ranks),
        )
        for place, operation in enumerate(of_ranks[0].operation)
    )


def _interval(plan: Plan, index: int, times: list[tuple[int, float, float]]) -> MessageInterval:
    message = plan.messages[index]
    issued = max(start for _, start, _ in times)
    return MessageInterval(
        message=index,
        operation=message.operation.name.lower(),
        channel=message.channel.name.lower(),
        wire_bytes=message.wire_bytes,
        ranks=tuple(rank for rank, _, _ in times),
        issued_seconds=issued,
        on_wire_seconds=issued,
        arrived_seconds=max(end for _, _, end in times),
    )


def _compute(rank: int, timeline: RankTimeline) -> list[ComputeInterval]:
    compute = timeline.compute
    spans = zip(compute.phase, compute.start_seconds, compute.stop_seconds, strict=True)
    return [ComputeInterval(rank, phase, start, stop) for phase, start, stop in spans]


def queue_head_seconds(trace: IterationTrace) -> dict[int, float]:
    """When each message became the head of its channel's queue: its oldest that had not arrived.

    From then to its arrival the channel works for it. What was issued behind others has waited
    for them before: on gloo the runtime issues a message as soon as it is ready, the backend
    takes a few at a time, and no clock shows when it begins with one.
    """
    landed: dict[str, float] = {}
    found = {}
    for message in sorted(trace.messages, key=lambda each: each.arrived_seconds):
        before = landed.get(message.channel, message.issued_seconds)
        found[message.message] = max(message.issued_seconds, before)
        landed[message.channel] = message.arrived_seconds
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """One message, predicted and measured.

    predicted_seconds, measured_seconds: from when it headed its channel's queue (see
        `queue_head_seconds`) to its arrival.
    *_arrived_seconds: from the forward start of the iteration.
    """

    message: int
    operation: str
    channel: str
    wire_bytes: int
    predicted_seconds: float
    measured_seconds: float
    predicted_arrived_seconds: float
    measured_arrived_seconds: float


def differences(predicted: IterationTrace, measured: IterationTrace) -> tuple[Difference, ...]:
    """Of all messages in both traces, where they differ most first."""
    of = {message.message: message for message in predicted.messages}
    begun, really_begun = queue_head_seconds(predicted), queue_head_seconds(measured)
    found = [
        Difference(
            message=real.message,
            operation=real.operation,
            channel=real.channel,
            wire_bytes=real.wire_bytes,
            predicted_seconds=of[real.message].arrived_seconds - begun[real.message],
            measured_seconds=real.arrived_seconds - really_begun[real.message],
            predicted_arrived_seconds=of[real.message].arrived_seconds,
            measured_arrived_seconds=real.arrived_seconds,
        )
        for real in measured.messages
        if real.message in of
    ]
    return tuple(
        sorted(found, key=lambda each: -abs(each.measured_seconds - each.predicted_seconds))
    )
