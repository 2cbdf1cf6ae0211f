"""The events of a tuning as they happen, over as many connections as that takes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import httpx

from autosync.api.client.service_connection import ServiceConnection, pause_seconds, worth_another
from autosync.api.client.service_errors import ServiceError, unreachable

SILENCE_SECONDS = 60.0
"""The service comments on a silent stream every 15 s; after four of them missing it is gone."""
FIELDS = ("kind", "message", "done", "total", "best_seconds", "state", "at")


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """id: counts up. done, total: steps of the phase `kind`. state: of the tuning. at: seconds
    since 1970, by the database's clock."""

    id: int
    kind: str
    message: str
    done: int
    total: int
    best_seconds: float | None
    state: str
    at: float


def followed(
    connection: ServiceConnection, tuning_id: str, after: int, follow: bool
) -> Iterator[ServiceEvent]:
    """Events after number `after`, to the tuning's end; without `follow` those there are. Where a
    connection is lost the next one goes on behind the last event.

    Raises:
        ServiceError: the service refused. ServiceUnreachable: it did not answer so many times that
            nothing new came.
    """
    failures, why = 0, "the stream ended"
    while failures < connection.attempts:
        try:
            for event in _told(connection, tuning_id, after, follow):
                if event is None:
                    return
                after, failures = event.id, 0
                yield event
        except httpx.TransportError as error:
            why = str(error) or "silence"
        except ServiceError as refusal:
            if not worth_another(refusal, repeatable=True):
                raise
            why = refusal.message
        connection.sleep(pause_seconds(failures))
        failures += 1
    raise unreachable(connection.address, why)


def _told(
    connection: ServiceConnection, tuning_id: str, after: int, follow: bool
) -> Iterator[ServiceEvent | None]:
    """What one connection tells; None is the tuning's end."""
    timeout, query = httpx.Timeout(SILENCE_SECONDS), {} if follow else {"follow": "false"}
    path = f"/v1/tunings/{tuning_id}/events"
    seen = {"Last-Event-ID": str(after)}
    with connection.streamed(path, params=query, headers=seen, timeout=timeout) as response:
        yield from _events(response.iter_lines())


def _events(lines: Iterable[str]) -> Iterator[ServiceEvent | None]:
    """Of a stream of server-sent events; every one has a single line of data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        kind = fields.get("event", "")
        if kind == "end":
            yield None
        elif kind == "progress":
            data = json.loads(fields["data"])
            yield ServiceEvent(int(fields["id"]), **{name: data[name] for name in FIELDS})
        fields = {}
