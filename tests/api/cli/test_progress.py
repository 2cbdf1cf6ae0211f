"""What a tuning's progress prints, on a terminal and where stderr is none."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from autosync import Client
from autosync.api.cli.connection import ATTEMPTS
from autosync.api.cli.progress import (
    FOLLOWING_ATTEMPTS,
    RANKING_KERNELS,
    TimeLeftColumn,
    TuningProgressBar,
    compilation_lines,
    events_until_end,
)
from autosync.api.client.tuning_calls import ServiceEvent
from autosync.api.db import Database
from autosync.api.engine.prediction_ranking import best_by_prediction
from autosync.api.views.time_left import TimeLeft
from autosync.simulator.numba_cache import Kernel
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.api.client.scripted_server import cutting
from tests.api.http.serving import served
from tests.api.sample import finished
from tests.domains import chain_graph, domain_of

WIDTH = 120


class Bar:
    """A tuning's bar on a console of its own, under a clock that the test sets."""

    def __init__(self, terminal: bool):
        self.now_seconds = 0.0
        self.written = io.StringIO()
        left = TimeLeft(budget=4, repeats=1)
        self.column = TimeLeftColumn(left, self.clock)
        columns = (TextColumn("{task.description}"), self.column)
        console = Console(file=self.written, width=WIDTH, color_system=None)
        self.progress = Progress(
            *columns, console=console, auto_refresh=False, disable=not terminal
        )
        self.shown = TuningProgressBar(self.progress, left, self.clock)

    def clock(self) -> float:
        return self.now_seconds

    def see(self, kind: str, message: str, done: int = 0, total: int = 0) -> None:
        best = 0.0123 if done else None
        self.shown.see(ServiceEvent(0, kind, message, done, total, best, "running", 0.0))

    @property
    def description(self) -> str:
        return self.progress.tasks[0].description

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()


def search(bar: Bar) -> None:
    """Two trials of 5 s after a ranking."""
    bar.see("opening", "starting the workers")
    bar.see("ranking", "ranking proposals, round 1", 100, 100)
    for done in (1, 2):
        bar.now_seconds += 5.0
        bar.see("search", f"strategy {done}: 12.3 ms", done, 4)


def test_the_seconds_left_tick_beside_the_bar() -> None:
    bar = Bar(terminal=True)
    search(bar)
    task = bar.progress.tasks[0]
    assert bar.column.render(task).plain == "about 30 s left"
    bar.now_seconds += 2.0
    assert bar.column.render(task).plain == "about 28 s left"
    assert bar.description == "trying strategies, best 12.3 ms"
    assert (task.completed, task.total) == (2, 4)


def test_without_a_terminal_every_line_says_what_is_left() -> None:
    bar = Bar(terminal=False)
    search(bar)
    assert bar.lines == [
        " search   1/4  strategy 1: 12.3 ms (about 35 s left)",
        " search   2/4  strategy 2: 12.3 ms (about 30 s left)",
    ]


@pytest.mark.parametrize("kind", ["waiting", "something new"])
def test_an_event_of_any_kind_shows_its_text(kind: str) -> None:
    bar = Bar(terminal=True)
    search(bar)
    bar.see(kind, "waits for another [measurement] on this machine")
    assert bar.lines[-1].endswith("waits for another [measurement] on this machine")
    assert "waits for another" in bar.description
    assert (bar.progress.tasks[0].completed, bar.progress.tasks[0].total) == (2, 4)
    bar.see("search", "strategy 3: 12.2 ms", 3, 4)
    assert bar.description.startswith("trying strategies")
    bar.see(kind, "node a\x1b[2J has no device")
    assert bar.description == r"node a\x1b[2J has no device"


def test_what_a_ranking_compiles_is_said_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))

    def balance_load(value: int) -> int:
        return value + 1

    for expected in (["compiling balance_load, 1 of 6 at most"], []):  # then it is loaded
        with compilation_lines():
            thread = threading.Thread(target=Kernel(balance_load), args=(1,))  # as a worker does
            thread.start()
            thread.join()
        first, *lines = capsys.readouterr().err.splitlines() or [""]
        assert ("once for this machine" in first) == bool(expected)
        assert [line.strip() for line in lines] == expected


def test_the_kernels_of_a_ranking_are_those_that_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []
    call = Kernel.__call__

    def noted(kernel: Kernel[..., Any], *arguments: Any, **named: Any) -> Any:
        used.append(kernel.__name__)  # type: ignore[attr-defined]  # as a function's
        return call(kernel, *arguments, **named)

    monkeypatch.setattr(Kernel, "__call__", noted)
    domain = domain_of(chain_graph(((64, 32), (300, 7), (33,))))
    best_by_prediction(domain, TimelineSimulator(), 50, 0, lambda event: None)
    assert set(used) == set(RANKING_KERNELS)


def test_a_tuning_is_followed_over_a_moment_without_the_service(
    sqlite_url: str, sqlite: Database
) -> None:
    """Longer than whoever types a command waits for one."""
    tuning_id = finished(sqlite)
    with served(sqlite_url) as service:
        port = int(service.address.rpartition(":")[2])
        with (
            cutting(port, [0] * (FOLLOWING_ATTEMPTS - 1)) as address,
            Client(address, attempts=ATTEMPTS, sleep=lambda seconds: None) as client,
        ):
            events = list(events_until_end(client, tuning_id, threading.Event()))
    assert events[-1].state == "finished"
