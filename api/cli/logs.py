"""Logs of a command go to a file, so that the screen holds answers only."""

import logging
import os
import time
from pathlib import Path


def state_folder() -> Path:
    """Where this user's logs lie; created when missing."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(state) / "autosync"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log_path(kind: str) -> Path:
    """A file name of its own for this process."""
    return state_folder() / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def log_to_file(kind: str) -> Path:
    """Send this process's log records to a file, created with the first of them."""
    path = log_path(kind)
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return path
