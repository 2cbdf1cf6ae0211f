"""What a trace says about the order of messages."""

from autosync.codes import Channel
from autosync.plan import Plan
from autosync.runtime.execution.execution_trace import ExecutionTrace
from tests.message_flights import Flight, crowded


def crowding(trace: ExecutionTrace, plan: Plan, iterations: int) -> str:
    """Empty if all-gathers left while the wire was idle where the plan says so."""
    for iteration in range(iterations):
        flights = [
            Flight(
                event.message,
                event.channel == Channel.GATHER,
                plan.messages[event.message].carries_values,
                event.start_seconds,
                event.end_seconds,
            )
            for event in trace.events
            if event.iteration == iteration
        ]
        if found := crowded(flights):
            return f"iteration {iteration}: {found}"
    return ""


def disorder(trace: ExecutionTrace, order: list[int], queues: list[str], iterations: int) -> str:
    """Empty if every message of the plan ran once an iteration, each queue in the plan's order."""
    for iteration in range(iterations):
        of = [event for event in trace.events if event.iteration == iteration]
        issued = [event.message for event in sorted(of, key=lambda event: event.start_seconds)]
        if sorted(issued) != list(range(len(queues))):
            return f"iteration {iteration}: {sorted(issued)} of {len(queues)} messages"
        for queue in set(queues):
            planned = [index for index in order if queues[index] == queue]
            if (ran := [index for index in issued if queues[index] == queue]) != planned:
                return f"iteration {iteration}, queue {queue}: {ran}, planned {planned}"
    return ""
