"""Traces as Chrome's trace viewer and ui.perfetto.dev read them."""

import json
from collections.abc import Iterator

from autosync.codes import Channel
from autosync.simulator.timeline.iteration_trace import IterationTrace, MessageInterval

DEALS = 1 + max(Channel)
"""Their thread, behind those of the channels."""


def chrome_trace(**traces: IterationTrace) -> str:
    """JSON: of every trace a process per rank, and the network, under the trace's name.

    The traces' zeros coincide: `predicted` and `measured` iterations lie one under the other.
    """
    events: list[dict[str, object]] = []
    first = 0
    for name, trace in traces.items():
        events += _events(name, trace, first)
        first += 1 + len({interval.rank for interval in trace.compute})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(name: str, trace: IterationTrace, first: int) -> Iterator[dict[str, object]]:
    """Processes are numbered from `first`."""
    ranks = sorted({interval.rank for interval in trace.compute})
    process = {rank: first + place for place, rank in enumerate(ranks)}
    network = first + len(ranks)
    yield _named("process_name", network, 0, f"{name}: network")
    for channel in Channel:
        yield _named("thread_name", network, int(channel), channel.name.lower())
    if trace.deals:
        yield _named("thread_name", network, DEALS, "deals of placed modules")
    for rank in ranks:
        yield _named("process_name", process[rank], 0, f"{name}: rank {rank}")
    for each in trace.compute:
        yield _event(each.phase, process[each.rank], 0, each.start_seconds, each.stop_seconds)
    for message in trace.messages:
        yield _message_event(message, network)
    for deal in trace.deals:
        event = _event(deal.operation, network, DEALS, deal.issued_seconds, deal.arrived_seconds)
        yield {**event, "args": {"wire_bytes": deal.wire_bytes}}


def _message_event(message: MessageInterval, network: int) -> dict[str, object]:
    event = _event(
        f"{message.operation} {message.message}",
        network,
        int(Channel[message.channel.upper()]),
        message.issued_seconds,
        message.arrived_seconds,
    )
    event["args"] = {
        "wire_bytes": message.wire_bytes,
        "ranks": list(message.ranks),
        "startup_us": (message.on_wire_seconds - message.issued_seconds) * 1e6,
    }
    return event


def _event(name: str, process: int, thread: int, start: float, stop: float) -> dict[str, object]:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": start * 1e6,
        "dur": (stop - start) * 1e6,
    }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
