"""Where errors become words: no traceback reaches a user."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from rich.markup import escape

from autosync.api.cli.console import err, log_path
from autosync.errors import AutosyncError
from autosync.extras import failed_import

REFUSED = 2
"""Exit code when the user can mend the input; click uses the same for wrong usage."""
BROKEN = 70
"""Exit code of a defect of this program (EX_SOFTWARE of sysexits.h)."""


def guarded(command: Callable[[], object]) -> int:
    """Run the command line and return its exit code."""
    try:
        command()
    except AutosyncError as error:
        print_error(error)
        return REFUSED
    except OSError as error:
        return _system_refused(error)
    except ImportError as error:
        if refusal := failed_import(error):
            print_error(refusal)
            return REFUSED
        print_defect(error)
        return BROKEN
    except Exception as error:  # process boundary: a defect is logged in full, and a line names it
        if trouble := _database_trouble(error):
            print_error(trouble)
            return REFUSED
        print_defect(error)
        return BROKEN
    return 0


def print_error(error: AutosyncError) -> None:
    """What is wrong, the thing with its value, the way out."""
    err.print(f"[bold red]Error:[/] {escape(error.message)}")
    shown = "" if error.value is None else str(error.value)
    if shown and shown not in error.message and len(shown) <= 200:
        err.print(f"  [dim]{escape(error.thing or 'value')}:[/] {escape(shown)}")
    if error.remedy:
        err.print(f"  [green]Way out:[/] {escape(error.remedy)}")


def _database_trouble(error: Exception) -> AutosyncError | None:
    if sys.modules.get("sqlalchemy") is None:  # most commands never load it
        return None
    from autosync.api.db.database import database_trouble

    return database_trouble(error)


def _system_refused(error: OSError) -> int:
    """A file, port or disk that the system denies is the user's to mend; other errors are not."""
    if error.filename is None and error.strerror is None:
        print_defect(error)
        return BROKEN
    where = f" ({error.filename})" if error.filename else ""
    err.print(f"[bold red]Error:[/] {escape(str(error.strerror or error))}{escape(where)}.")
    return REFUSED


def print_defect(error: BaseException) -> None:
    """One line, and where the log with the traceback is."""
    text = "".join(traceback.format_exception(error))
    name = type(error).__name__
    try:
        log = write_log(text)
    except OSError:  # nowhere to write: then the traceback is better shown than lost
        sys.stderr.write(text)
        return
    first = escape((str(error).splitlines() or [""])[0][:200])
    err.print(f"[bold red]Unexpected {name}:[/] {first}")
    err.print(f"  This is a defect of autosync. The traceback is in {escape(str(log))}")


def write_log(text: str) -> Path:
    """The log of one defect, under the user's state folder."""
    log = log_path("error")
    text = f"autosync {' '.join(_masked(sys.argv[1:]))}\n{text}"
    log.write_bytes(text.encode(errors="replace"))
    return log


def _masked(arguments: list[str]) -> list[str]:
    """Without the password of a database and without a token."""
    shown = [_masked_url(word) if "://" in word else word for word in arguments]
    return [
        "***" if before == "--token" else "--token=***" if word.startswith("--token=") else word
        for before, word in zip(["", *shown], shown, strict=False)
    ]


def _masked_url(url: str) -> str:
    """Nothing of it where the library that knows its parts is not installed."""
    try:
        from autosync.api.db.database import masked
    except ImportError:
        return "***"
    return masked(url)
