"""Everyone who follows a tuning hears of it, and the database is asked once for all."""

import asyncio
import json
from typing import Any

import pytest

from autosync.api.db import Database
from autosync.api.engine import job_queue
from autosync.api.http import event_stream
from autosync.api.http.event_stream import EventFeed, stream
from tests.api.databases import statements
from tests.api.sample import claimed, finished, small_request, waiting

REQUEST = small_request()
LISTENERS = 100


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "POLL_SECONDS", 0.02)


async def told(feed: EventFeed, tuning_id: str, last: int = 0) -> list[str]:
    return [part async for part in stream(feed, tuning_id, last)]


async def until_followed(feed: EventFeed, count: int) -> None:
    while feed.count < count:
        await asyncio.sleep(0.01)


def test_many_listeners_cost_what_one_costs(database: Database) -> None:
    held, store = claimed(database, REQUEST)
    store.report(waiting("before"))

    async def follow() -> tuple[list[list[str]], int, int]:
        feed = EventFeed(database)
        everyone = [asyncio.create_task(told(feed, held.job_id)) for _ in range(LISTENERS)]
        await until_followed(feed, LISTENERS)
        polls = feed.polls
        with statements(database) as seen:
            await asyncio.to_thread(store.report, waiting("first"))
            await asyncio.to_thread(store.report, waiting("second"))
            await asyncio.to_thread(job_queue.end_cancelled, database, held)
            heard = await asyncio.gather(*everyone)
            reads = sum("FROM events" in statement for statement, _ in seen)
            return heard, reads, feed.polls - polls

    heard, read, polls = asyncio.run(follow())
    assert len({tuple(parts) for parts in heard}) == 1
    messages = [json.loads(part.split("data: ")[1])["message"] for part in heard[0][:-1]]
    assert messages == ["before", "first", "second"]
    assert heard[0][-1].startswith("event: end")
    # a poll reads once, and behind it listeners read once for each event that one of them had last
    assert 1 <= read <= (1 + len(messages) + 1) * (polls + 1)


class NotingFeed(EventFeed):
    """read_after: numbers of events after which somebody has read."""

    def __init__(self, database: Database):
        super().__init__(database)
        self.read_after: set[int] = set()

    async def read(self, followed: Any, tuning_id: str, last: int) -> Any:
        batch = await super().read(followed, tuning_id, last)
        self.read_after.add(last)
        return batch


def test_who_comes_later_misses_nothing_and_hears_nothing_twice(database: Database) -> None:
    held, store = claimed(database, REQUEST)

    async def follow() -> tuple[list[str], list[str], list[str]]:
        feed = NotingFeed(database)
        early = asyncio.create_task(told(feed, held.job_id))
        await until_followed(feed, 1)
        await asyncio.to_thread(store.report, waiting("first"))
        late = asyncio.create_task(told(feed, held.job_id))
        beyond = asyncio.create_task(told(feed, held.job_id, 2**52))
        while 2**52 not in feed.read_after:  # who asks for what is beyond begins with what is next
            await asyncio.sleep(0.01)
        await asyncio.to_thread(store.report, waiting("second"))
        await asyncio.to_thread(job_queue.end_cancelled, database, held)
        return await early, await late, await beyond

    early, late, beyond = (without_state(parts) for parts in asyncio.run(follow()))
    assert early == late
    assert len(early) == 3
    assert beyond == early[1:]


def without_state(parts: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each event's head and data. The tuning's state is that of the moment when it is told, which
    may differ between who was there and who came later."""
    told_events = [part.partition("data: ") for part in parts]
    return [
        (head, {key: value for key, value in json.loads(data).items() if key != "state"})
        for head, _, data in told_events
    ]


def test_an_ended_tuning_needs_no_poll(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "POLL_SECONDS", 3600.0)  # however long the reads take
    tuning_id = finished(sqlite, REQUEST)

    async def follow() -> tuple[list[str], int]:
        feed = EventFeed(sqlite)
        return await told(feed, tuning_id), feed.polls

    heard, polls = asyncio.run(follow())
    assert heard[-1] == 'event: end\ndata: {"state": "finished"}\n\n'
    assert polls <= 1


def test_whoever_listens_is_let_go_when_the_service_ends(sqlite: Database) -> None:
    held, _ = claimed(sqlite, REQUEST)

    async def follow() -> list[str]:
        feed = EventFeed(sqlite)
        task = asyncio.create_task(told(feed, held.job_id))
        await until_followed(feed, 1)
        feed.close()
        return await task

    assert asyncio.run(follow()) == []


def test_it_goes_on_when_the_database_comes_back(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _ = claimed(sqlite, REQUEST)
    away = [True, True, False]
    newest = event_stream.newest

    def sometimes(database: Database, tuning_ids: list[str]) -> Any:
        if away and away.pop(0):
            raise OSError("away")
        return newest(database, tuning_ids)

    monkeypatch.setattr(event_stream, "newest", sometimes)

    async def follow() -> list[str]:
        feed = EventFeed(sqlite)
        task = asyncio.create_task(told(feed, held.job_id))
        await until_followed(feed, 1)
        while away:  # else the tuning may end before the feed has asked again
            await asyncio.sleep(0.01)
        await asyncio.to_thread(job_queue.end_cancelled, sqlite, held)
        return await task

    assert len(asyncio.run(follow())) == 1
