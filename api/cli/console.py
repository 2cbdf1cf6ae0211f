"""What the command line prints: answers to stdout, everything about the work to stderr."""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autosync import units

PIPED_WIDTH = 200
"""Columns where the output is no terminal: tables then wrap late, lines never."""


CONTROLS = {code: f"\\x{code:02x}" for code in (*range(7), *range(14, 32), *range(127, 160))}
"""What a terminal obeys, as it is shown: names come from whoever wrote a file. (rich itself leaves
out the bell, carriage returns and the like.)"""


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(text.translate(CONTROLS), **options)


def _console(stream: TextIO, stderr: bool) -> _Console:
    piped = not stream.isatty()
    width = PIPED_WIDTH if piped else None
    return _Console(stderr=stderr, highlight=False, soft_wrap=piped, width=width)


out = _console(sys.stdout, stderr=False)
err = _console(sys.stderr, stderr=True)


def print_json(data: object) -> None:
    """Plain JSON for other programs: never coloured, never wrapped."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def say(message: str) -> None:
    """One line about the work, on stderr."""
    err.print(message, markup=True)


def warn(message: str) -> None:
    """A line that must not be overlooked, on stderr."""
    err.print(f"[bold yellow]Note:[/] {message}")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[str] = (),
    title: str = "",
) -> None:
    """A table on stdout; the columns named in `right` hold numbers."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=None)
    for column in columns:
        number = column in right
        table.add_column(
            column, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    out.print(table)


def number_of_ms(seconds: float | None) -> str:
    """For columns and sentences that name the unit; a dash for none."""
    return "-" if seconds is None else units.milliseconds(seconds).removesuffix(" ms")


def between_ms(low_seconds: float, high_seconds: float) -> str:
    """`118.2 to 131.0`, for the same."""
    return units.milliseconds_between(low_seconds, high_seconds).removesuffix(" ms")


def state_folder() -> Path:
    """Where this user's logs lie, created when missing; where that cannot be written, as a home in
    some containers, the folder of temporary files."""
    with suppress(OSError, RuntimeError):  # the latter of a user without a home
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(state) / "autosync"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.gettempdir())


def log_path(kind: str) -> Path:
    """A file name of its own for this process."""
    return state_folder() / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def log_to_file(kind: str) -> Path:
    """Send this process's log records to a file, created with the first of them."""
    path = log_path(kind)
    handler = logging.FileHandler(path, delay=True, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False  # on a full disk: each record would print a traceback
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return path
