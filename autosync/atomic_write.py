"""Files that other processes may read at any moment: replaced whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_atomically(path: str | Path) -> Iterator[Path]:
    """A draft beside `path` to write to, of a name of its own, since others may write `path` at the
    same time: the last of them wins. At the end of the block it is flushed to disk and renamed to
    `path`; if the block fails, `path` stays unchanged and the draft is removed."""
    path = Path(path)
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
