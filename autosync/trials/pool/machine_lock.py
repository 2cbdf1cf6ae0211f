"""Turns: of all pools that measure on this machine, one measures at a time.

Two trials on the same cores and links disturb each other, whoever started them. So a pool holds a
lock of the machine during each pass: `flock` on a well-known file, which needs no right but to
read it and which the kernel releases when its holder dies.
"""

import contextlib
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autosync.errors import NotSupported

MEASURING = "autosync-measuring.lock"
NEXT = "autosync-next.lock"

POLL_SECONDS = 0.02
REMARK_SECONDS = 10.0

log = logging.getLogger(__name__)


class GivenUp(Exception):
    """Whoever waited for a turn wants it no more."""


@dataclass(frozen=True, slots=True)
class MachineLock:
    """folder: where the lock files lie; pools that name the same one take turns."""

    folder: Path

    @contextlib.contextmanager
    def taken(self, given_up: threading.Event) -> Iterator[None]:
        """Wait for a turn and have it for the block.

        Who waits holds the place of the next. So a pool that has just measured cannot go on
        before one that waits.

        Raises:
            GivenUp: the event was set while waiting.
            NotSupported: a lock file cannot be opened.
        """
        place = _locked(self.folder / NEXT, given_up)
        try:
            turn = _locked(self.folder / MEASURING, given_up)
        finally:
            os.close(place)
        try:
            yield
        finally:
            os.close(turn)


def machine_turns() -> MachineLock:
    """Those of this machine, the same for all its users: TMPDIR may be each one's own."""
    shared = Path("/run/lock")
    everyone = shared.is_dir() and shared.stat().st_mode & stat.S_IWOTH
    return MachineLock(shared if everyone else Path("/tmp"))


def _locked(path: Path, given_up: threading.Event) -> int:
    """An open file that holds the lock until it is closed."""
    remark_at = time.monotonic() + REMARK_SECONDS
    while True:
        file = _opened(path)
        while not _taken(file):
            if given_up.wait(POLL_SECONDS):
                os.close(file)
                raise GivenUp
            if time.monotonic() > remark_at:
                log.info("others measure on this machine: waiting for %s (see fuser)", path)
                remark_at = float("inf")
        if _is_still(path, file):
            return file
        os.close(file)  # a cleaner has removed it meanwhile: others lock the new one


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _opened(path: Path) -> int:
    """Open for reading, which is enough to lock it; made first where it is missing.

    Never with O_CREAT alone: in a folder like /tmp the kernel forbids that for files of others.

    Raises:
        NotSupported: neither is allowed.
    """
    try:
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            with contextlib.suppress(FileExistsError):
                made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
                os.fchmod(made, 0o444)  # readable for everyone, whatever the umask
                return made
    except OSError as error:
        raise NotSupported(
            f"cannot open {str(path)!r}, by which measurements on this machine take turns: "
            f"{error.strerror}.",
            thing="lock file",
            value=str(path),
            remedy="Let everyone read it, or remove it while nothing is measured.",
        ) from None
