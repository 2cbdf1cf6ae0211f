"""Files that a command writes: whole or not at all."""

from pathlib import Path

from autosync.atomic_write import replaced_atomically
from autosync.errors import InvalidInput


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


def check_folder(path: Path) -> None:
    """Before long work whose result goes to `path`: that its folder exists.

    Raises:
        InvalidInput: it does not.
    """
    if not path.absolute().parent.is_dir():
        raise _unwritable(path, "there is no such folder")


def _unwritable(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"cannot write {str(path)!r}: {why}.",
        thing="output",
        value=str(path),
        remedy="Name a file in a folder that exists and can be written to.",
    )
