"""What a trace says about the order of messages."""

from autosync.runtime.execution.execution_trace import ExecutionTrace


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
