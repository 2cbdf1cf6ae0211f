"""Processes that answer heavy requests are waited for, however they end; clients take turns."""

import asyncio
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from autosync.api.db import Database
from autosync.api.engine.service_limits import ServiceLimits, TryLater
from autosync.api.http import answer_processes
from autosync.api.http.access.access_rules import Access
from autosync.api.http.answer_process import ForwardedAnswer
from autosync.api.http.answer_processes import WAITING, WAITING_BYTES, AnswerProcesses, _Turns

ECHO = """
import sys, time
from multiprocessing.connection import Connection
from autosync.api.http.answer_process import ForwardedAnswer

connection = Connection(int(sys.argv[1]))
connection.recv_bytes()
connection.send("ready")
while True:
    asked = connection.recv()
    time.sleep(float(asked.body))
    connection.send(ForwardedAnswer(200, [], asked.body))
"""
"""Of a process that answers with the request's body after so many seconds. It starts sooner than
one with the application."""
LONG = b"600"
Started = list["subprocess.Popen[bytes]"]
Run = Callable[[Callable[[AnswerProcesses], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """All processes that are started, in that order."""
    found: Started = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            found.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr("autosync.api.http.answer_processes.subprocess.Popen", Recorded)
    monkeypatch.setattr(answer_processes, "CHILD", ECHO)
    return found


@pytest.fixture
def run(sqlite: Database) -> Run:
    """Runs a coroutine with processes, and closes them at its end as a service does."""

    def run_with(of: Callable[[AnswerProcesses], Coroutine[Any, Any, None]]) -> None:
        async def closed_at_the_end() -> None:
            processes = AnswerProcesses(sqlite, Access(), ServiceLimits())
            try:
                await of(processes)
            finally:
                processes.close()

        asyncio.run(closed_at_the_end())

    return run_with


def ask(processes: AnswerProcesses, body: bytes = b"0") -> Coroutine[Any, Any, ForwardedAnswer]:
    return processes.answer("reading", "alice", {}, body)


def all_waited_for(started: Started) -> bool:
    return all(process.returncode is not None for process in started)


def test_of_a_client_that_leaves_at_once(started: Started, run: Run) -> None:
    """Before, while and after its request is sent."""

    async def leaving(processes: AnswerProcesses) -> None:
        turns = 0
        while turns < 12 or len(started) == 1:  # on a busy machine requests are sent later
            await ask(processes)
            asking = asyncio.create_task(ask(processes, LONG))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            turns += 1

    run(leaving)
    assert all_waited_for(started)


def test_of_a_service_that_ends_just_after_an_answer(
    started: Started, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed_meanwhile(processes: AnswerProcesses) -> None:
        keep = processes._keep

        def close_and_keep(*arguments: Any) -> None:
            processes.close()
            keep(*arguments)

        monkeypatch.setattr(processes, "_keep", close_and_keep)
        assert (await ask(processes)).body == b"0"
        with pytest.raises(TryLater, match="ending"):
            await ask(processes)

    run(closed_meanwhile)
    assert len(started) == 1
    assert all_waited_for(started)


@pytest.mark.parametrize("turns", [0, 1, 100])
def test_of_a_service_that_ends_while_one_starts(started: Started, run: Run, turns: int) -> None:
    async def prepare(processes: AnswerProcesses) -> None:
        processes.prepare("reading")
        for _ in range(turns):
            await asyncio.sleep(0.001)

    run(prepare)
    assert all_waited_for(started)


def test_of_a_service_that_ends_while_one_answers(started: Started, run: Run) -> None:
    async def answered_late(processes: AnswerProcesses) -> None:
        await ask(processes)
        asking = asyncio.create_task(ask(processes, LONG))
        await asyncio.sleep(0.1)
        processes.close()
        assert all_waited_for(started)
        with pytest.raises(TryLater, match="ending"):
            await asking

    run(answered_late)


def test_of_those_that_wait_too_long(
    started: Started, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_processes, "IDLE_SECONDS", 0.0)

    async def idle(processes: AnswerProcesses) -> None:
        for _ in range(3):
            await ask(processes)
            await asyncio.sleep(0.001)

    run(idle)
    assert len(started) == 3
    assert all_waited_for(started)


def test_of_those_that_do_not_start(
    started: Started, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(processes: AnswerProcesses) -> None:
        with pytest.raises(RuntimeError, match="did not start"):
            await ask(processes)
        monkeypatch.setattr(answer_processes, "CHILD", "import time; time.sleep(600)")
        monkeypatch.setattr(answer_processes, "START_SECONDS", 0.1)
        with pytest.raises(RuntimeError, match="did not start"):
            await ask(processes)
        monkeypatch.setattr("autosync.api.http.answer_processes.sys.executable", "/nowhere/python")
        with pytest.raises(RuntimeError, match="did not start"):
            await ask(processes)

    monkeypatch.setattr(answer_processes, "CHILD", "")
    run(refused)
    assert len(started) == 3
    assert all_waited_for(started)


def test_a_client_has_one_turn_and_others_have_theirs() -> None:
    async def turns() -> None:
        held = _Turns()
        async with held.turn("predicting", "alice", 0):
            with pytest.raises(TryLater, match="another prediction of yours"):
                async with held.turn("predicting", "alice", 0):
                    pass
            async with held.turn("predicting", "bob", 0), held.turn("reading", "alice", 0):
                with pytest.raises(TryLater, match="another prediction is"):
                    async with held.turn("predicting", "carol", 0):
                        pass
        async with held.turn("predicting", "alice", 0):
            pass
        assert not held._asked
        assert not held._locks

    asyncio.run(turns())


def test_as_many_wait_as_may_and_in_order() -> None:
    async def turns() -> None:
        held, done = _Turns(), []

        async def read(number: int, size_bytes: int = 1) -> None:
            async with held.turn("reading", "alice", size_bytes):
                done.append(number)

        async with held.turn("reading", "alice", WAITING_BYTES):
            with pytest.raises(TryLater):
                await read(0)
        async with held.turn("reading", "alice", 1):
            waiting = [asyncio.create_task(read(number)) for number in range(WAITING["reading"])]
            await asyncio.sleep(0)
            with pytest.raises(TryLater, match="large requests"):
                await read(0)
            assert done == []
        await asyncio.gather(*waiting)
        assert done == list(range(WAITING["reading"]))

    asyncio.run(turns())
