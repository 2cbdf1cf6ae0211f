"""Clients that read over HTTP, as cheap as they can be: they share the machine with the service."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """asked_at_seconds: after the first client began."""

    path: str
    status: int
    asked_at_seconds: float
    seconds: float
    size_bytes: int


async def read_for(
    address: str, paths: Sequence[str], clients: int, seconds: float, pause_seconds: float
) -> list[Answer]:
    """Each client reads the paths in turn over a connection of its own, `pause_seconds` after each
    answer, and begins at a moment of its own within the first pause; all answers."""
    since, rng = time.perf_counter(), random.Random(0)
    each = []
    for number in range(clients):
        turned = number % len(paths)
        delay = pause_seconds * rng.random()
        in_turn = [*paths[turned:], *paths[:turned]]
        each.append(_client(address, in_turn, since, seconds, pause_seconds, delay))
    return [answer for answers in await asyncio.gather(*each) for answer in answers]


async def _client(
    address: str,
    paths: Sequence[str],
    since: float,
    seconds: float,
    pause_seconds: float,
    delay_seconds: float,
) -> list[Answer]:
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    await asyncio.sleep(delay_seconds)
    answers: list[Answer] = []
    try:
        while True:
            for path in paths:
                began = time.perf_counter()
                if began >= since + seconds:
                    return answers
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                size = _length(head)
                await reader.readexactly(size)
                taken = time.perf_counter() - began
                answers.append(
                    Answer(path, int(head.split(b" ", 2)[1]), began - since, taken, size)
                )
                if pause_seconds:
                    await asyncio.sleep(pause_seconds)
    finally:
        writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    raise ValueError(f"an answer without a length: {head[:200]!r}")


class Followers:
    """Listeners of event streams: when each of them got each event."""

    def __init__(self, address: str):
        self.place = urlsplit(address)
        self.arrived: dict[int, list[float]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def follow(self, paths: Sequence[str]) -> None:
        """Returns when every stream has begun."""
        begun = [asyncio.Event() for _ in paths]
        self._tasks = [
            asyncio.create_task(self._listen(path, ready))
            for path, ready in zip(paths, begun, strict=True)
        ]
        for ready in begun:
            await ready.wait()

    async def _listen(self, path: str, ready: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(self.place.hostname, self.place.port)
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {self.place.netloc}\r\nLast-Event-ID: {2**52}\r\n\r\n"
        )
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        ready.set()
        try:
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    self.arrived.setdefault(int(line[4:]), []).append(time.time())
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
