"""What the command line prints: answers to stdout, everything about the work to stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

out = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


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


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(text)
    draft.replace(path)


def milliseconds(seconds: float | None) -> str:
    """Seconds as ms with three or more significant digits; a dash for none."""
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def document_or_text(path: Path | None, document: Any, json_text: str) -> None:
    """Write a document to `path`, or print it when no path is given."""
    if path is None:
        print_json(document)
    else:
        write_text(path, json_text)
