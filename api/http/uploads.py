"""Reads what is posted: small documents where they arrive, large ones in a process of their own,
whose time and memory are bounded.

What Python and its libraries read in one go holds the interpreter's lock, and with it the service:
29 MB of graph held it for 11 s.
"""

import hashlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from autosync.api.db.database import Database
from autosync.api.db.document_store import DocumentRow, cluster_row, graph_row, insert_rows
from autosync.api.db.tables import GraphRow
from autosync.api.engine.service_limits import (
    UNLIMITED,
    ServiceLimits,
    TryLater,
    check_cluster,
    check_graph,
    how_to_raise,
)
from autosync.api.engine.submission import Submission, enqueue, submitted_before
from autosync.api.http.named_documents import tuning_request
from autosync.api.spec import TuningSpec
from autosync.cluster_file import parse_cluster
from autosync.documents import from_json
from autosync.environment import DATABASE_URL_VARIABLE, allowed_environment
from autosync.errors import AutosyncError, InvalidInput, NotFound, NotSupported
from autosync.graph import ModelGraph
from autosync.units import MIB


@dataclass(frozen=True, slots=True)
class StoredRow:
    """new: it was not there before."""

    id: str
    name: str
    new: bool


def store_graph(database: Database, body: bytes, limits: ServiceLimits) -> StoredRow:
    """Raises InvalidInput where it is no graph, or larger than the operator allows."""
    graph = from_json(ModelGraph, body, source="graph")
    check_graph(graph, limits)
    return _stored(database, graph_row(graph))


def store_cluster(database: Database, body: bytes, limits: ServiceLimits) -> StoredRow:
    """Raises InvalidInput where it is no cluster, or larger than the operator allows."""
    cluster = parse_cluster(_text(body), "cluster", limits.cluster_mib * MIB)
    check_cluster(cluster, limits)
    return _stored(database, cluster_row(cluster))


def start_tuning(
    database: Database, body: bytes, client: str, idempotency_key: str | None, limits: ServiceLimits
) -> str:
    """The id of the tuning, queued; of the one that was queued before under this key.

    Raises:
        InvalidInput, NotFound, NotSupported, TryLater: as `tuning_request` and `enqueue`.
    """
    asked = read_tuning(body)
    submission = Submission(client, limits, idempotency_key, _digest(asked))
    with database.reading() as session:
        if (before := submitted_before(session, submission)) is not None:
            return before
    return enqueue(database, tuning_request(database, asked), submission)


def read_tuning(body: bytes) -> TuningSpec:
    """Raises InvalidInput; names the field, its value and what was expected."""
    return from_json(TuningSpec, body, "body", "GET /docs shows what this request takes.")


def graph_bytes(database: Database, name: str) -> int:
    """How large the stored graph is that a request names; 0 for a bundled one, or where there is
    none."""
    if not name.isalnum():
        return 0
    size = select(func.length(GraphRow.document)).where(GraphRow.id == name)
    with database.reading() as session:
        return session.scalar(size) or 0


def _stored(database: Database, row: DocumentRow) -> StoredRow:
    with database.writing() as session:
        new = insert_rows(session, (row,))
    return StoredRow(row.id, str(row.columns["name"]), new)


def _digest(asked: TuningSpec) -> str:
    """Equal for bodies that ask for the same in other words, or in another order."""
    return hashlib.sha256(asked.model_dump_json(exclude_unset=True).encode()).hexdigest()[:32]


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the body is no UTF-8 text: {error.reason} at byte {error.start}.",
            thing="body",
            remedy="Send the cluster as YAML or JSON.",
        ) from None


LARGE_BYTES = MIB // 4
"""From here on a document is read in a process of its own, which takes a second to start. Every
bundled graph is smaller, and read in some 10 ms."""
MOST_PROCESSES, MOST_OF_A_CLIENT = 4, 2
"""At once; one more is refused for now."""
RETRY_SECONDS = 5.0
START_SECONDS = 30.0
"""For Python and its imports on a busy machine."""
WALL_SECONDS_PER_CPU_SECOND = 3.0
"""How much longer it may take than its processor seconds, since it has the lowest priority."""
REFUSALS: dict[str, type[AutosyncError]] = {
    kind.__name__: kind for kind in (InvalidInput, NotFound, NotSupported)
}
log = logging.getLogger(__name__)


class Uploads:
    """Stores what is posted. A call ends within the limits' time; `close` ends all at once.

    Every call raises AutosyncError where the document is refused, `TryLater` where too many large
    ones are being read, and OperationalError where the database is away.
    """

    def __init__(self, database: Database, limits: ServiceLimits):
        self.database = database
        self.limits = limits
        self.lock = threading.Lock()
        self.readers: Counter[str] = Counter()
        self.running: set[subprocess.Popen[bytes]] = set()

    def graph(self, body: bytes, client: str) -> StoredRow:
        self._check_size("graph", body)
        if self._reads_here(len(body)):
            return store_graph(self.database, body, self.limits)
        return StoredRow(**self._in_process("graph", body, client))

    def cluster(self, body: bytes, client: str) -> StoredRow:
        self._check_size("cluster", body)
        if self._reads_here(len(body)):
            return store_cluster(self.database, body, self.limits)
        return StoredRow(**self._in_process("cluster", body, client))

    def tuning(self, body: bytes, client: str, idempotency_key: str | None = None) -> str:
        """The tuning's id."""
        here = self._reads_here(len(body))
        if here and self._reads_here(graph_bytes(self.database, read_tuning(body).graph)):
            return start_tuning(self.database, body, client, idempotency_key, self.limits)
        return str(self._in_process("tuning", body, client, idempotency_key)["id"])

    def close(self) -> None:
        """Kill what still reads."""
        for process in tuple(self.running):
            process.kill()

    def _reads_here(self, size_bytes: int) -> bool:
        """Small documents, and all where there are no limits to keep."""
        return size_bytes <= LARGE_BYTES or self.limits == UNLIMITED

    def _check_size(self, kind: str, body: bytes) -> None:
        """Of a form only the whole was limited before: the file and what is around it."""
        name = f"{kind}_mib"
        most = getattr(self.limits, name)
        if len(body) > most * MIB:
            raise InvalidInput(
                f"the {kind} has {len(body)} bytes; the limit is {most} MiB.",
                thing=kind,
                value=len(body),
                remedy=f"Post a smaller one. {how_to_raise(name)}",
            )

    def _in_process(
        self, kind: str, body: bytes, client: str, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        asked = {"kind": kind, "client": client, "idempotency_key": idempotency_key}
        head = json.dumps({**asked, "limits": asdict(self.limits)})
        with self._counted(kind, client):
            return self._answer(kind, f"{head}\n".encode() + body)

    @contextmanager
    def _counted(self, kind: str, client: str) -> Iterator[None]:
        """Raises TryLater where the client, or all of them, have their most processes."""
        with self.lock:
            full = self.readers.total() >= MOST_PROCESSES
            if full or self.readers[client] >= MOST_OF_A_CLIENT:
                raise TryLater(
                    f"{self.readers.total()} large documents are being read already.",
                    thing=kind,
                    remedy="Post it again in some seconds.",
                    retry_seconds=RETRY_SECONDS,
                )
            self.readers[client] += 1
        try:
            yield
        finally:
            with self.lock:
                self.readers[client] -= 1
                self.readers += Counter()  # forgets those at 0

    def _answer(self, kind: str, posted: bytes) -> dict[str, Any]:
        seconds = START_SECONDS + WALL_SECONDS_PER_CPU_SECOND * self.limits.reading_seconds
        with _started(self.database) as process:
            self.running.add(process)
            try:
                out, error = process.communicate(posted, timeout=seconds)
            except subprocess.TimeoutExpired:
                raise _too_much(kind, "reading_seconds", self.limits) from None
            finally:
                process.kill()
                self.running.discard(process)
        if process.returncode == -signal.SIGXCPU:
            raise _too_much(kind, "reading_seconds", self.limits)
        if process.returncode == -signal.SIGABRT:  # how Rust ends where memory does
            raise _too_much(kind, "reading_mib", self.limits)
        if process.returncode != 0:
            log.error("%s", error.decode(errors="replace"))
            raise RuntimeError(f"the process that reads a {kind} ended with {process.returncode}")
        answer: dict[str, Any] = json.loads(out)
        if "refused" in answer:
            raise _refusal(kind, answer["refused"], self.limits)
        return answer


def _started(database: Database) -> "subprocess.Popen[bytes]":
    url = database.engine.url.render_as_string(hide_password=False)
    environment = {**allowed_environment(("PG*",)), DATABASE_URL_VARIABLE: url}
    return subprocess.Popen(
        [sys.executable, "-m", "autosync.api.http.upload_process"],
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the service, which kills it
    )


def _refusal(kind: str, told: dict[str, Any], limits: ServiceLimits) -> Exception:
    """What the process raised."""
    name = told.pop("error")
    if name == TryLater.__name__:
        return TryLater(**told)
    if name == MemoryError.__name__:
        return _too_much(kind, "reading_mib", limits)
    if name == OperationalError.__name__:
        return OperationalError(None, None, Exception(told["message"]))
    return REFUSALS.get(name, AutosyncError)(told.pop("message"), **told)


def _too_much(kind: str, name: str, limits: ServiceLimits) -> InvalidInput:
    most = getattr(limits, name)
    what = "processor seconds" if name == "reading_seconds" else "MiB of memory"
    return InvalidInput(
        f"reading this {kind} takes more than {most} {what}.",
        thing=kind,
        value=f"more than {most}",
        remedy=f"Post a smaller one. {how_to_raise(name)}",
    )
