"""Reads, listeners and exports of a service over a database of many trials.

python -m benchmarks.service.service_load [--db URL]

Clients and the service share the machine. A paced client reads once a second, as someone at a
dashboard does; an eager one at once after each answer, so that the service is always full. The
database is made anew, in a temporary folder unless --db names an empty one.
"""

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import insert

from autosync.api.db import Database, connect, migrate
from autosync.api.db.tables import EventRow
from autosync.units import MIB
from benchmarks.output import option_parser
from benchmarks.service.load_client import Answer, Followers, read_for
from benchmarks.service.synthetic_trials import fill
from tests.api.http.serving import Service, served

TRIALS, ROWS = 100_000, 1_000_000
"""Of the tunings that are read, and of what is exported."""
CLIENTS, LISTENERS = 50, 500
SECONDS = 20.0
PACE_SECONDS = 1.0
FIRST_SECONDS = 2.0
"""Shown for themselves: what a fresh service has not done before, it does then."""
EVENTS = 20
"""Told to the listeners, half a second apart."""
STREAMED = ("csv", "jsonl", "parquet")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--db", help="an empty database; by default a SQLite file")
    given = parser.parse_args()
    with _folder() as folder:
        url = given.db or f"sqlite:///{folder / 'load.db'}"
        migrate(url)
        database = connect(url)
        began = time.perf_counter()
        ids = fill(database, sizes(TRIALS))
        print(f"{TRIALS:,} trials of {len(ids)} tunings in {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()
        with served(url) as service:
            print(f"ready in {time.perf_counter() - began:.1f} s")
            paths = read_paths(service, ids)
            before = _cpu_seconds(service.pid)
            for pause in (PACE_SECONDS, 0.0):
                answers = asyncio.run(read_for(service.address, paths, CLIENTS, SECONDS, pause))
                show_reads(answers, pause)
                used, before = _cpu_seconds(service.pid) - before, _cpu_seconds(service.pid)
                print(f"  the service used {used / SECONDS:.0%} of a core")
            print(f"service: peak {service.peak_memory_bytes() / MIB:.0f} MiB")
            show_listeners(service, database, ids[-1])
        show_exports(database, url)
        database.close()


def sizes(trials: int) -> list[int]:
    """Trials of each tuning: one of a twentieth, ten of a hundredth, the rest of 50; the last one,
    which runs, has 24."""
    found = [trials // 20, *[trials // 100] * 10]
    rest = trials - sum(found) - 24
    return [*found, *[50] * (rest // 50), rest % 50, 24]


def read_paths(service: Service, ids: Sequence[str]) -> list[str]:
    """What dashboards and clients read, of a large tuning, a usual and a running one."""
    large, usual, running = ids[0], ids[len(ids) // 2], ids[-1]
    second = httpx.get(f"{service.address}/v1/tunings?limit=50").json()["next"]
    strategies = f"/v1/tunings/{large}/strategies"
    deep = ""
    for _ in range(10):
        page = httpx.get(f"{service.address}{strategies}?limit=100{deep}", timeout=60).json()
        deep = f"&cursor={page['next']}" if page["next"] else deep
    return [
        "/",
        f"/tunings/{large}",
        f"/tunings/{usual}/live",
        "/v1/tunings?limit=50",
        f"/v1/tunings?limit=50&cursor={second}" if second else "/v1/tunings",
        f"/v1/tunings/{usual}",
        f"/v1/tunings/{running}",
        f"{strategies}?limit=100",
        f"{strategies}?limit=100{deep}",
        f"/v1/tunings/{usual}/strategies",
        f"/v1/tunings/{large}/trials?limit=100",
        f"/v1/tunings/{usual}/trials",
        "/v1/graphs",
        "/v1/health",
    ]


def show_reads(answers: Sequence[Answer], pause: float) -> None:
    kind = f"one read a {pause:g} s" if pause else "no pause"
    wrong = [answer for answer in answers if answer.status != 200]
    print(
        f"\n{CLIENTS} clients, {kind}: {len(answers) / SECONDS:.0f} reads a second, {_ms(answers)}"
        + (f"; {len(wrong)} REFUSED, as {wrong[0]}" if wrong else "")
    )
    first = [answer for answer in answers if answer.asked_at_seconds < FIRST_SECONDS]
    print(f"  {_ms(first)}  in the first {FIRST_SECONDS:g} s")
    for path in dict.fromkeys(answer.path for answer in answers):
        mine = [answer for answer in answers if answer.path == path]
        print(f"  {_ms(mine)}  {mine[0].size_bytes / 1024:7.0f} KiB  {_short(path)}")


def _ms(answers: Sequence[Answer]) -> str:
    low, high = np.percentile([answer.seconds for answer in answers], [50, 95]) * 1e3
    return f"p50 {low:6.1f} ms, p95 {high:6.1f} ms"


def _short(path: str) -> str:
    return path if len(path) < 70 else f"{path[:66]}..."


def show_listeners(service: Service, database: Database, tuning_id: str) -> None:
    """Of one running tuning: how soon they hear of an event, and what they cost meanwhile."""
    late, silent, busy = asyncio.run(_listeners(service, database, tuning_id))
    low, high = np.percentile(late, [50, 95])
    print(
        f"\n{LISTENERS} listeners: {len(late)} of {EVENTS * LISTENERS} events told after "
        f"{low:.2f} s (p50), {high:.2f} s (p95); the service used {silent:.1%} of a core while "
        f"nothing happened, {busy:.1%} with two events a second"
    )


async def _listeners(
    service: Service, database: Database, tuning_id: str
) -> tuple[list[float], float, float]:
    followers = Followers(service.address)
    await followers.follow([f"/v1/tunings/{tuning_id}/events"] * LISTENERS)
    await asyncio.sleep(2.0)
    began, used = time.perf_counter(), _cpu_seconds(service.pid)
    await asyncio.sleep(10.0)
    silent = (_cpu_seconds(service.pid) - used) / (time.perf_counter() - began)
    began, used = time.perf_counter(), _cpu_seconds(service.pid)
    written: dict[int, float] = {}
    for done in range(EVENTS):
        await asyncio.sleep(random.uniform(0.4, 0.6))
        number = await asyncio.to_thread(_tell, database, tuning_id, done)
        written[number] = time.time()
    await asyncio.sleep(2.0)
    busy = (_cpu_seconds(service.pid) - used) / (time.perf_counter() - began)
    await followers.stop()
    late = [at - written[number] for number in written for at in followers.arrived.get(number, [])]
    return late, silent, busy


def _tell(database: Database, tuning_id: str, done: int) -> int:
    row = {"tuning_id": tuning_id, "kind": "search", "message": "", "done": done, "total": EVENTS}
    with database.writing() as session:
        return session.scalars(insert(EventRow).returning(EventRow.id), [row]).one()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show_exports(database: Database, url: str) -> None:
    began, more_rows = time.perf_counter(), ROWS - TRIALS
    fill(database, [50] * (more_rows // 50), seed=2)
    print(f"\n{more_rows:,} trials more in {time.perf_counter() - began:.0f} s")
    for kind in STREAMED:
        with served(url) as service:  # a new one each, so that its peak is the export's
            httpx.get(f"{service.address}/v1/health")
            before = service.peak_memory_bytes()
            began, size, first = time.perf_counter(), 0, None
            path = f"{service.address}/v1/runtimes.{kind}"
            with httpx.stream("GET", path, timeout=None) as answer:
                for part in answer.iter_raw():
                    first = first or time.perf_counter() - began
                    size += len(part)
            taken = time.perf_counter() - began
            peak = service.peak_memory_bytes()
            print(
                f"runtimes.{kind}: {size / MIB:.0f} MiB in {taken:.0f} s, the first after "
                f"{first or 0:.2f} s; peak {peak / MIB:.0f} MiB, of it {(peak - before) / MIB:.0f} "
                "for the export"
            )


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="autosync-load-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
