"""Progress bars on stderr; lines where stderr is no terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from autosync.api.cli.console import err

if TYPE_CHECKING:
    from autosync.search.loop.outcome import TuningEvent


def progress_bar() -> Progress:
    """A bar that vanishes when its work is done; it draws nothing where stderr is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


@contextmanager
def ranking_bar(quiet: bool) -> "Iterator[Callable[[TuningEvent], None]]":
    """A bar over sampled proposals; yields what takes the search's events."""
    with progress_bar() as bar:
        if quiet:
            bar.stop()
        task = bar.add_task("ranking proposals", total=None)

        def on_event(event: "TuningEvent") -> None:
            bar.update(task, completed=event.done, total=event.total)

        yield on_event
