"""Tunings: start, follow, steer, read; their events as they happen."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx

from autosync.api.client.calls import posted
from autosync.api.client.service_connection import (
    PAGE_ROWS,
    ServiceConnection,
    given,
    pause_seconds,
    plain,
    worth_another,
)
from autosync.api.client.service_errors import ServiceError, unreachable
from autosync.api.views.event_schemas import TuningEvents
from autosync.api.views.tuning_schemas import (
    BucketCurve,
    ChangedTuning,
    RankedStrategies,
    State,
    Trials,
    Tuning,
    Tunings,
)
from autosync.atomic_write import replaced_atomically
from autosync.bundle import Bundle, read_bundle
from autosync.cluster import Cluster
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.exports.settings import FrameworkName, FrameworkSettings
from autosync.graph import ModelGraph
from autosync.search.loop.earlier_document import EarlierTrials

if TYPE_CHECKING:
    from autosync.api.views.timeline_schemas import Timeline


SILENCE_SECONDS = 60.0
"""The service comments on a silent stream every 15 s; after four of them missing it is gone."""
FIELDS = ("kind", "message", "done", "total", "best_seconds", "state", "at")
Sign = Literal["alive", "end"]
"""A comment of a silent stream, and the tuning's end."""


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


def followed(connection: ServiceConnection, tuning_id: str, after: int) -> Iterator[ServiceEvent]:
    """Events after number `after`, to the tuning's end. Where a connection is lost the next one
    goes on behind the last event.

    Raises:
        ServiceError: the service refused; where it may come back, `attempts` times in a row.
        ServiceUnreachable: it did not answer, or sent nothing, as often.
    """
    failures, why = 0, "the stream ended"
    while True:
        refused: ServiceError | None = None
        try:
            for event in _received(connection, tuning_id, after):
                failures = 0
                if event == "end":
                    return
                if isinstance(event, ServiceEvent):
                    after = event.id
                    yield event
        except httpx.TransportError as error:
            why = str(error) or "silence"
        except ServiceError as refusal:
            if not worth_another(refusal, repeatable=True):
                raise
            refused = refusal
        failures += 1
        if failures == connection.attempts:
            raise refused or unreachable(connection.address, why)
        connection.sleep(pause_seconds(failures - 1, refused))


def so_far(connection: ServiceConnection, tuning_id: str, after: int) -> Iterator[ServiceEvent]:
    """The events that there are after number `after`.

    Raises:
        ServiceError, ServiceUnreachable: as `ServiceConnection.send`.
    """
    more = True
    while more:
        path = f"/v1/tunings/{tuning_id}/events"
        page = connection.get(path, TuningEvents, after=after, limit=PAGE_ROWS)
        for event in page.items:
            after = event.id
            yield ServiceEvent(**event.model_dump(), state=page.state)
        more = page.more


def _received(
    connection: ServiceConnection, tuning_id: str, after: int
) -> Iterator[ServiceEvent | Sign]:
    """What one connection carries."""
    timeout, seen = httpx.Timeout(SILENCE_SECONDS), {"Last-Event-ID": str(after)}
    path = f"/v1/tunings/{tuning_id}/events"
    with connection.streamed(path, headers=seen, timeout=timeout) as response:
        yield from _events(response.iter_lines())


def _events(lines: Iterable[str]) -> Iterator[ServiceEvent | Sign]:
    """Of a stream of server-sent events; every one has a single line of data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        kind = fields.get("event", "")
        if kind == "end":
            yield "end"
        elif kind == "progress":
            data = json.loads(fields["data"])
            yield ServiceEvent(int(fields["id"]), **{name: data[name] for name in FIELDS})
        else:
            yield "alive"
        fields = {}


ENDED = ("finished", "failed", "cancelled")
LISTED = 50
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TuningCalls:
    connection: ServiceConnection

    def start(
        self,
        graph: ModelGraph | str,
        cluster: Cluster | str,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Tuning:
        """Queue a tuning. graph, cluster: documents, which are stored, or the ids of stored ones,
        or names of bundled ones. options: other fields of `autosync.api.spec.TuningSpec`.
        idempotency_key: of this request, by default a new one, so that
        what is sent again starts nothing twice.

        Raises:
            ServiceError: as POST /v1/tunings refuses.
        """
        return self.connection.post(
            "/v1/tunings",
            Tuning,
            repeatable=True,
            json={**posted(self.connection, graph, cluster), **plain(options)},
            headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
        )

    def list(
        self,
        *,
        limit: int | None = LISTED,
        cursor: str | None = None,
        state: State | None = None,
        tag: str | None = None,
        archived: bool | None = None,
        sort: str = "-created",
        prefix: str | None = None,
        recorded: str | None = None,
    ) -> Tunings:
        """limit: None lists all. prefix: only ids that begin so. recorded: only those with a
        timeline of this strategy."""
        only = {"state": state, "tag": tag, "archived": archived, "sort": sort}
        some = {"prefix": prefix, "recorded": recorded}
        return self.connection.listed("/v1/tunings", Tunings, limit, cursor, **only, **some)

    def get(self, tuning_id: str) -> Tuning:
        return self.connection.get(f"/v1/tunings/{tuning_id}", Tuning)

    def strategies(
        self, tuning_id: str, *, limit: int | None = None, cursor: str | None = None
    ) -> RankedStrategies:
        """The ranking, by default all of it."""
        path = f"/v1/tunings/{tuning_id}/strategies"
        return self.connection.listed(path, RankedStrategies, limit, cursor)

    def bucket_curve(self, tuning_id: str) -> BucketCurve:
        """torch's DDP by the sizes of its buckets, of a tuning whose space is `buckets`."""
        return self.connection.get(f"/v1/tunings/{tuning_id}/buckets", BucketCurve)

    def trials(
        self,
        tuning_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        sort: str = "position",
    ) -> Trials:
        """Finished trials, by default all of them."""
        path = f"/v1/tunings/{tuning_id}/trials"
        return self.connection.listed(path, Trials, limit, cursor, sort=sort)

    def update(
        self,
        tuning_id: str,
        *,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> Tuning:
        """Write what is not None beside the tuning."""
        body = given(
            {"tags": None if tags is None else [*tags], "note": note, "archived": archived}
        )
        path = f"/v1/tunings/{tuning_id}"
        answer = self.connection.send("PATCH", path, repeatable=True, json=body)
        return self.connection.parsed(answer, Tuning)

    def cancel(self, tuning_id: str) -> ChangedTuning:
        return self._change(tuning_id, "cancel")

    def pause(self, tuning_id: str) -> ChangedTuning:
        """It stops after the trial that runs."""
        return self._change(tuning_id, "pause")

    def resume(self, tuning_id: str) -> ChangedTuning:
        """One that is paused, failed or was cancelled goes on with what it measured."""
        return self._change(tuning_id, "resume")

    def events(
        self, tuning_id: str, *, after: int = 0, follow: bool = True
    ) -> Iterator[ServiceEvent]:
        """Progress as it happens, until the tuning has ended; without `follow` what there is. A
        connection that is lost is made again. after: the number of the last event seen."""
        read = followed if follow else so_far
        return read(self.connection, tuning_id, after)

    def wait(
        self,
        tuning_id: str,
        *,
        timeout_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Tuning:
        """The tuning once it has ended: finished, failed or cancelled, as its `state` says.

        Raises:
            TimeoutError: it has not ended in time; it goes on.
        """
        until = None if timeout_seconds is None else clock() + timeout_seconds
        while (tuning := self.get(tuning_id)).state not in ENDED:
            if until is not None and clock() >= until:
                raise TimeoutError(
                    f"tuning {tuning_id} is {tuning.state} after {timeout_seconds} s, in phase "
                    f"{tuning.progress.phase}; it goes on."
                )
            self.connection.sleep(POLL_SECONDS)
        return tuning

    def bundle(self, tuning_id: str, *, strategy: str | None = None) -> Bundle:
        """The confirmed answer, or any strategy of the tuning by its id."""
        return read_bundle(self.bundle_text(tuning_id, strategy=strategy))

    def bundle_text(self, tuning_id: str, *, strategy: str | None = None) -> str:
        """As `bundle`, as the JSON that `autosync.distribute` reads from a file."""
        path, query = f"/v1/tunings/{tuning_id}/bundle", given({"strategy": strategy})
        return self.connection.send("GET", path, params=query).text

    def save_bundle(self, tuning_id: str, path: str | Path, *, strategy: str | None = None) -> None:
        """As `bundle`, into a file: whole or not at all."""
        text = self.bundle_text(tuning_id, strategy=strategy)
        with replaced_atomically(path) as draft:
            draft.write_bytes(text.encode())

    def settings(
        self, tuning_id: str, framework: FrameworkName, *, strategy: str | None = None
    ) -> FrameworkSettings:
        """The answer, or any strategy of the tuning, as settings of a framework.

        Raises:
            ServiceError: with status 409 and the reason where the framework cannot run it.
        """
        path, query = f"/v1/tunings/{tuning_id}/settings", {"for": framework, "strategy": strategy}
        return self.connection.get(path, FrameworkSettings, **query)

    def domain(self, tuning_id: str) -> Domain:
        """What it is about, with what was measured of it."""
        answer = self.connection.send("GET", f"/v1/tunings/{tuning_id}/domain")
        return from_json(Domain, answer.content)

    def measured(self, tuning_id: str) -> EarlierTrials:
        """Its measured strategies, as far as it has come: `earlier` of another tuning."""
        answer = self.connection.send("GET", f"/v1/tunings/{tuning_id}/measured")
        return from_json(EarlierTrials, answer.content)

    def timeline(self, tuning_id: str, *, strategy: str | None = None) -> "Timeline":
        """One iteration of the answer or of any strategy, predicted and measured."""
        from autosync.api.views.timeline_schemas import Timeline  # loads numba

        path = f"/v1/tunings/{tuning_id}/timeline"
        return self.connection.get(path, Timeline, strategy=strategy)

    def trace(self, tuning_id: str, *, strategy: str | None = None) -> dict[str, Any]:
        """The same for ui.perfetto.dev."""
        path, query = f"/v1/tunings/{tuning_id}/trace", given({"strategy": strategy})
        trace: dict[str, Any] = self.connection.send("GET", path, params=query).json()
        return trace

    def _change(self, tuning_id: str, what: str) -> ChangedTuning:
        path = f"/v1/tunings/{tuning_id}/{what}"
        return self.connection.post(path, ChangedTuning, repeatable=True)
