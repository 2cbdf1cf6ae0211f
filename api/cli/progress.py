"""Progress on stderr: a bar with the seconds left, or lines where stderr is no terminal."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from autosync.api.cli.console import CONTROLS, err, number_of_ms, say
from autosync.api.cli.tuning_lookup import ENDED

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.api.client.tuning_calls import ServiceEvent, TuningCalls
    from autosync.api.views.time_left import TimeLeft
    from autosync.api.views.tuning_schemas import Tuning

PHASE_WORDS = {
    "opening": "starting the workers",
    "ranking": "ranking proposals",
    "search": "trying strategies",
    "confirm": "confirming the winner",
    "done": "done",
}
"""What the bar says in each phase of a tuning."""
WAITING = "waiting for a worker"
SILENT = ("opening", "ranking", "done")
"""Kinds of events that only move the bar; all others are printed, so that nothing is missed."""
RANKING_KERNELS = (
    "compile_loop",
    "play",
    "draw_choices",
    "fill_shards",
    "balance_load",
    "merge_adjacent",
)
"""What a ranking compiles the first time it is run on a machine: what designs strategies and what
draws them at the same time."""
Clock = Callable[[], float]
POLL_SECONDS = 0.5
FOLLOWING_ATTEMPTS = 8
"""Of a request while a tuning is followed, with half a minute of pauses between: a service that is
started anew, or a line that is cut for a moment, does not end it."""


class TuningProgressBar:
    """Prints each finished step of a tuning once, and keeps the bar at the step under way."""

    def __init__(self, bar: Progress, left: "TimeLeft", clock: Clock = time.monotonic):
        self._bar = bar
        self._left = left
        self._clock = clock
        self._best = ""
        self._task = bar.add_task(WAITING, total=None)

    def see(self, event: "ServiceEvent") -> None:
        self._left.see(event.kind, event.done, event.total, self._clock())
        if event.best_seconds is not None:
            self._best = f", best {number_of_ms(event.best_seconds)} ms"
        if event.kind in PHASE_WORDS:
            words, total = PHASE_WORDS[event.kind] + self._best, event.total or None
            self._bar.update(self._task, description=words, completed=event.done, total=total)
        else:
            self.say(event.message)
        if event.kind not in SILENT:
            self._print(event)

    def say(self, words: str) -> None:
        """What the bar says until the next event; how far it is stays."""
        self._bar.update(self._task, description=escape(words.translate(CONTROLS)))

    def _print(self, event: "ServiceEvent") -> None:
        count = f"{event.done:>3}/{event.total}" if event.total else ""
        left = self._left.words(self._clock()) if self._bar.disable else ""
        after = f" [dim]({left})[/]" if left else ""
        words = f"[dim]{escape(event.kind):>7} {count}[/]  {escape(event.message)}{after}"
        self._bar.console.print(words)


class TimeLeftColumn(ProgressColumn):
    """The estimate, counted down between events."""

    def __init__(self, left: "TimeLeft", clock: Clock):
        super().__init__()
        self._left = left
        self._clock = clock

    def render(self, task: Task) -> Text:
        return Text(self._left.words(self._clock()))


@contextmanager
def tuning_bar(
    budget: int, repeats: int, clock: Clock = time.monotonic
) -> Iterator[TuningProgressBar]:
    """A bar over a whole tuning, that many trials and interleaved repeats."""
    from autosync.api.views.time_left import TimeLeft

    left = TimeLeft(budget, repeats)
    with _progress_bar(left, clock) as bar:
        yield TuningProgressBar(bar, left, clock)


def events_until_end(
    client: "Client", tuning_id: str, stop: threading.Event, after: int = 0
) -> "Iterator[ServiceEvent]":
    """The events of a tuning behind number `after`, until it has ended or `stop`."""
    tunings = _patient(client)
    while True:
        ended = tunings.get(tuning_id).state in ENDED or stop.is_set()
        for event in tunings.events(tuning_id, after=after, follow=False):
            after = event.id
            yield event
        if ended:
            return
        stop.wait(POLL_SECONDS)


def _patient(client: "Client") -> "TuningCalls":
    """The client's calls of tunings, with more attempts where it asks a service more than once."""
    from autosync.api.client.tuning_calls import TuningCalls

    attempts = 1 if client.connection.attempts == 1 else FOLLOWING_ATTEMPTS
    return TuningCalls(replace(client.connection, attempts=attempts))


def show_progress(
    client: "Client", tuning: "Tuning", stop: threading.Event, after: int = 0
) -> "Tuning":
    """Show how the tuning goes until it has ended or `stop`; the tuning then."""
    with tuning_bar(tuning.settings["budget"], tuning.settings["repeats"]) as bar:
        for event in events_until_end(client, tuning.id, stop, after):
            bar.see(event)
        if stop.is_set():
            bar.say("stopping (Ctrl-C again: at once)")
    return client.tunings.get(tuning.id)


@contextmanager
def working(words: str) -> Iterator[None]:
    """A mark that turns while the block runs; it draws nothing where stderr is no terminal."""
    if not err.is_terminal:
        yield
        return
    with err.status(words):
        yield


@contextmanager
def compilation_lines() -> Iterator[None]:
    """A line on stderr for each kernel that is compiled inside; nothing where all are loaded."""
    from autosync.simulator.numba_cache import compilations_told

    begun: list[str] = []

    def tell(kernel: str) -> None:
        if not begun:
            say("Compiling the ranking kernels once for this machine, in a minute or two:")
        if kernel not in begun:
            begun.append(kernel)
        most = max(len(begun), len(RANKING_KERNELS))
        say(f"  compiling {escape(kernel)}, {len(begun)} of {most} at most")

    with compilations_told(tell):
        yield


def _progress_bar(left: "TimeLeft", clock: Clock) -> Progress:
    """A bar that vanishes when its work is done; it draws nothing where stderr is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeLeftColumn(left, clock),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
