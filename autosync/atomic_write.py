"""Replaces files that other processes may read at any moment, whole or not at all."""

import logging
import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("autosync")


@contextmanager
def replaced_atomically(path: str | Path) -> Iterator[Path]:
    """Yields a draft file beside `path`, under a unique name: if several processes write `path` at
    the same time, the last one wins. At the end of the block the draft is flushed to disk and
    renamed to `path`. If the block fails, the draft is removed and `path` stays unchanged.

    A link stays, and the file that it leads to is replaced. What is no file, such as /dev/null or a
    pipe, is yielded itself.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def warned_if_unwritten(path: str | Path) -> Iterator[None]:
    """Use around the writing of what took minutes to measure, and is used here all the same: where
    the disk is full, say, a warning tells it, and the caller goes on."""
    try:
        yield
    except OSError as error:
        message = f"{str(path)!r} could not be written: {error}"
        warnings.warn(message, stacklevel=4)
        log.warning(message)
