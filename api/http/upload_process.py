"""The process that reads one large document: from stdin to the database, under limits of its own.

Stdin: a line of JSON that says what comes, then the document. Stdout: JSON, the answer or the
refusal.
"""

import json
import os
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from autosync.api.db.database import Database, connect
from autosync.api.engine.service_limits import ServiceLimits, TryLater
from autosync.api.http.uploads import start_tuning, store_cluster, store_graph
from autosync.environment import DATABASE_URL_VARIABLE
from autosync.errors import AutosyncError
from autosync.units import MIB

DATA_FIELD = 5
"""Of /proc/self/statm (proc(5)): pages of data and stack."""


def main() -> None:
    head = json.loads(sys.stdin.buffer.readline())
    limits = ServiceLimits(**head["limits"])
    bound_this_process(limits)
    database = connect(os.environ[DATABASE_URL_VARIABLE])
    try:
        answer = stored(database, head, limits)
    except (AutosyncError, MemoryError, OperationalError) as error:
        answer = {"refused": refusal_of(error)}
    print(json.dumps(answer))


def bound_this_process(limits: ServiceLimits) -> None:
    """Beyond what its start took; the kernel kills it where it takes more time."""
    os.nice(19)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + limits.reading_seconds
    pages = int(Path("/proc/self/statm").read_text().split()[DATA_FIELD])
    size_bytes = pages * resource.getpagesize() + limits.reading_mib * MIB
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


def stored(database: Database, head: dict[str, Any], limits: ServiceLimits) -> dict[str, Any]:
    body = sys.stdin.buffer.read()
    match head["kind"]:
        case "graph":
            return asdict(store_graph(database, body, limits))
        case "cluster":
            return asdict(store_cluster(database, body, limits))
        case _:
            key = head["idempotency_key"]
            return {"id": start_tuning(database, body, head["client"], key, limits)}


def refusal_of(error: Exception) -> dict[str, Any]:
    """The refusal as `autosync.api.http.uploads` reads it."""
    words: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, AutosyncError):
        words |= {"message": error.message, "thing": error.thing, "remedy": error.remedy}
        if isinstance(error, TryLater):
            return {**words, "retry_seconds": error.retry_seconds}
        return {**words, "value": None if error.value is None else str(error.value)}
    return {**words, "message": str(error)}


if __name__ == "__main__":
    main()
