"""Runtimes of all trials, streamed to files or row by row."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

import httpx

from autosync.api.client.service_connection import ServiceConnection, given
from autosync.api.client.service_errors import unreachable
from autosync.atomic_write import replaced_atomically
from autosync.errors import InvalidInput

TableKind = Literal["csv", "jsonl", "parquet", "zip"]


class RuntimeOptions(TypedDict, total=False):
    """Only trials of these. since, until: seconds since 1970, as `measured_at`."""

    domain: str
    tuning: str
    graph: str
    cluster: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class RuntimeCalls:
    connection: ServiceConnection

    def save(self, path: str | Path, **only: Unpack[RuntimeOptions]) -> None:
        """Write the table whole or not at all, in the format that the name ends in: .csv, .jsonl,
        .parquet, or .zip for what `autosync simulator train` reads.

        Raises:
            InvalidInput: it ends otherwise. ServiceError: the service refused.
            ServiceUnreachable: it does not answer, or stopped in the middle.
        """
        path = Path(path)
        kind = path.suffix.removeprefix(".")
        if kind not in get_args(TableKind):
            raise InvalidInput(
                f"{path.name!r} ends in no format of runtimes.",
                thing="path",
                value=str(path),
                remedy=f"Formats are .{', .'.join(get_args(TableKind))}.",
            )
        with replaced_atomically(path) as draft, draft.open("wb") as file:
            for part in self._parts(f"/v1/runtimes.{kind}", only):
                file.write(part)

    def rows(self, **only: Unpack[RuntimeOptions]) -> Iterator[dict[str, Any]]:
        """Each trial, as it is read.

        Raises:
            ServiceError: the service refused. ServiceUnreachable: it does not answer, or stopped in
                the middle.
        """
        rest = b""
        for part in self._parts("/v1/runtimes.jsonl", only):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _parts(self, path: str, only: RuntimeOptions) -> Iterator[bytes]:
        try:
            with self.connection.streamed(path, params=given(only)) as response:
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise unreachable(self.connection.address, error) from error
