"""A lock of the machine: of all pools on it, one measures at a time.

Two trials on the same cores and links disturb each other, whoever started them. So a pool holds
the lock during each pass: `flock` on a well-known file, which needs only the right to read it and
which the kernel releases when its holder dies. /proc/locks names the holder.
"""

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autosync.cancellation import check_cancelled
from autosync.errors import NotSupported
from autosync.trials.contract import OnWait

MEASURING = "autosync-measuring.lock"
NEXT = "autosync-next.lock"

POLL_SECONDS = 0.02
REPORT_SECONDS = 1.0
"""A wait that lasts longer is reported."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MachineLock:
    """folder: where the lock files lie; pools that name the same one measure one at a time."""

    folder: Path

    @contextlib.contextmanager
    def held(self, on_wait: OnWait | None = None) -> Iterator[None]:
        """Wait for the lock and hold it for the block.

        Whoever waits holds a second lock, that of the next in turn. So a pool that has just
        measured cannot take the lock again before one that waits.

        on_wait: receives who measures, where the wait lasts longer than a second.

        Raises:
            Cancelled: while waiting.
            NotSupported: a lock file cannot be opened.
        """
        report_at = time.monotonic() + REPORT_SECONDS

        def still_waiting() -> None:
            nonlocal report_at
            if time.monotonic() > report_at:
                report_at = float("inf")
                self._report(on_wait)

        next_file = _locked(self.folder / NEXT, still_waiting)
        try:
            measuring_file = _locked(self.folder / MEASURING, still_waiting)
        finally:
            os.close(next_file)
        try:
            yield
        finally:
            os.close(measuring_file)

    def is_held(self) -> bool:
        """Whether anybody measures now. Where nobody does, asking takes the lock for an instant:
        one who wants it then asks again.

        Raises:
            NotSupported: the lock file cannot be opened.
        """
        file = _opened(self.folder / MEASURING)
        try:
            return not lock_taken(file)
        finally:
            os.close(file)

    def _report(self, on_wait: OnWait | None) -> None:
        holder = lock_holder(self.folder / MEASURING)
        who = f" (pid {holder})" if holder is not None else ""
        message = f"waits for another measurement on this machine{who}"
        log.info("%s", message)
        if on_wait is not None:
            on_wait(message)


def shared_machine_lock() -> MachineLock:
    """That of this machine, the same for all its users: TMPDIR may be each one's own.

    A container whose root is read-only has only /tmp, for all its processes alike.
    """
    shared = Path("/run/lock")
    everyone = (
        shared.is_dir()
        and shared.stat().st_mode & stat.S_IWOTH
        and not os.statvfs(shared).f_flag & os.ST_RDONLY
    )
    return MachineLock(shared if everyone else Path("/tmp"))


def lock_holder(path: Path) -> int | None:
    """The process that holds the lock of a file; None where there is none, or it is not
    visible, in another container for instance."""
    try:
        found = path.stat(follow_symlinks=False)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        fields = line.split()  # a line of one that waits has "->" before the kind
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == device:
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _locked(path: Path, still_waiting: Callable[[], None]) -> int:
    """An open file that holds the lock until it is closed. still_waiting: called again and again
    while others hold it."""
    while True:
        file = _opened(path)
        try:
            while not lock_taken(file):
                check_cancelled()
                time.sleep(POLL_SECONDS)
                still_waiting()
        except BaseException:  # whatever it was, nobody waits for this place
            os.close(file)
            raise
        if _is_still(path, file):
            return file
        os.close(file)  # a cleaner has removed it meanwhile: others lock the new one


def lock_taken(file: int) -> bool:
    """Whether this process has the file's lock now; False where another one holds it."""
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
            f"cannot open {str(path)!r}, by which pools measure one at a time: {error.strerror}.",
            thing="lock file",
            value=str(path),
            remedy="Let everyone read it, or remove it while nothing is measured.",
        ) from None
