"""Files that others may read at any moment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A draft beside `path` to write to, which takes its place at the end of the block, on the disk
    before anything else is. Where the block fails, `path` stays what it was and the draft goes."""
    path = Path(path)
    draft = path.with_name(path.name + ".part")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
