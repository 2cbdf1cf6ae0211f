"""Files that a command writes: whole or not at all."""

import os
import tempfile
from pathlib import Path

from autosync.atomic_write import replaced_atomically
from autosync.errors import InvalidInput

DRAFT_BYTES = 65536
"""Written to try a folder: a full disk takes the name of a file and not its content."""


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InvalidInput: the system does not let it be written; names the file and the reason.
    """
    try:
        with replaced_atomically(path.absolute()) as draft:
            draft.write_bytes(data)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def check_writable(path: Path) -> None:
    """Before long work whose result goes to `path`: that it can be written there.

    Raises:
        InvalidInput: it cannot; names the file and the reason.
    """
    target = path.absolute()
    if not target.parent.is_dir():
        raise _unwritable(path, "there is no such folder")
    if target.is_dir():
        raise _unwritable(path, "it is a folder")
    if target.exists() and not target.is_file():  # /dev/null or a pipe, which is not replaced
        if not os.access(target, os.W_OK):
            raise _unwritable(path, "permission denied")
        return
    try:
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(target)).parent) as draft:
            draft.write(bytes(DRAFT_BYTES))
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _unwritable(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"cannot write {str(path)!r}: {why}.",
        thing="output",
        value=str(path),
        remedy="Name a file in a folder that exists and can be written to.",
    )
