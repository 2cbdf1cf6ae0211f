"""A client of the REST service, for commands that use one like anybody else would."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from autosync.api.cli.progress import ProgressEvent
from autosync.errors import AutosyncError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from autosync.api.views.tuning_schemas import RankedStrategies, Trials, Tuning

    Answer = TypeVar("Answer", bound=BaseModel)
    Listed = TypeVar("Listed", RankedStrategies, Trials)

PAGE = 500
"""Rows that are asked for at a time: the most that the service gives."""
EVENT_FIELDS = ("kind", "message", "done", "total", "best_seconds", "at")
SILENCE_SECONDS = 60.0
"""The service comments on a silent stream every 15 s; after four of them missing it is gone."""
PAUSE_SECONDS = 3.0
"""The service sends what it has at once: after such a pause there is nothing more."""


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to the service at `address`.

    Each call raises AutosyncError with the service's own words when it refuses.
    """

    address: str
    http: httpx.Client

    def post_graph(self, text: str) -> str:
        """The id of the graph, stored."""
        return str(self._post("/v1/graphs", content=text)["id"])

    def post_tuning(self, request: dict[str, Any]) -> str:
        """The id of the queued tuning."""
        return str(self._post("/v1/tunings", json=request)["id"])

    def tunings(self, count: int) -> "list[Tuning]":
        """The newest first."""
        from autosync.api.views.tuning_schemas import Tunings

        page = self._get("/v1/tunings", Tunings, limit=min(count, PAGE))
        found = page.items
        while page.next is not None and len(found) < count:
            left = min(count - len(found), PAGE)
            page = self._get("/v1/tunings", Tunings, limit=left, cursor=page.next)
            found += page.items
        return found

    def cancel(self, tuning_id: str) -> str:
        """The state of the tuning from then on."""
        return str(self._post(f"/v1/tunings/{tuning_id}/cancel")["state"])

    def tuning(self, tuning_id: str) -> "Tuning":
        from autosync.api.views.tuning_schemas import Tuning

        return self._get(f"/v1/tunings/{tuning_id}", Tuning)

    def strategies(self, tuning_id: str) -> "RankedStrategies":
        from autosync.api.views.tuning_schemas import RankedStrategies

        return self._all(f"/v1/tunings/{tuning_id}/strategies", RankedStrategies)

    def trials(self, tuning_id: str) -> "Trials":
        from autosync.api.views.tuning_schemas import Trials

        return self._all(f"/v1/tunings/{tuning_id}/trials", Trials)

    def bundle(self, tuning_id: str) -> str:
        """The document that `autosync.distribute` applies."""
        return _checked(self.http.get(f"/v1/tunings/{tuning_id}/bundle")).text

    def events(self, tuning_id: str, follow: bool = True) -> Iterator[ProgressEvent]:
        """Progress as it happens, until the tuning has ended; without `follow`, until nothing more
        is there."""
        try:
            yield from self._events(tuning_id, SILENCE_SECONDS if follow else PAUSE_SECONDS)
        except httpx.ReadTimeout:
            if follow:
                raise

    def _events(self, tuning_id: str, silence_seconds: float) -> Iterator[ProgressEvent]:
        path = f"/v1/tunings/{tuning_id}/events"
        with self.http.stream("GET", path, timeout=silence_seconds) as response:
            if response.is_error:
                response.read()
            _checked(response)
            name = ""
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data" and name == "progress":
                    data = json.loads(value)
                    yield ProgressEvent(**{key: data[key] for key in EVENT_FIELDS})

    def _post(self, path: str, **body: Any) -> Any:
        return _checked(self.http.post(path, **body)).json()

    def _get(self, path: str, schema: "type[Answer]", **query: str | int) -> "Answer":
        return schema.model_validate_json(_checked(self.http.get(path, params=query)).content)

    def _all(self, path: str, schema: "type[Listed]") -> "Listed":
        """A whole list, page by page."""
        whole = page = self._get(path, schema, limit=PAGE)
        while page.next is not None:
            page = self._get(path, schema, limit=PAGE, cursor=page.next)
            whole.items += page.items
        whole.next = None
        return whole


def _checked(response: httpx.Response) -> httpx.Response:
    """Raises AutosyncError with what the service's problem+json says."""
    if not response.is_error:
        return response
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    raise AutosyncError(
        str(problem.get("detail") or f"the service answered {response.status_code}."),
        thing=str(problem.get("thing", "")),
        value=problem.get("value"),
        remedy=str(problem.get("remedy", "")),
    )
