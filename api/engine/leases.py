"""Leases of claims: a thread of their own renews them and looks whether the work is to end."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from sqlalchemy.exc import OperationalError

from autosync.cancellation import CancellationToken, Cancelled, cancelled_by

LEASE_SECONDS = 15.0
"""Of a claim; renewed every third of it. The longest wait after a worker was killed."""
POLL_SECONDS = 0.25
"""Between two looks at the database and at the worker's own signals."""
OVERDUE_SECONDS = 0.75
"""Work that has not ended so long after it was asked to (it compiles, say) is given up in its
absence: the database says so, and nothing that it still does is written."""
EndReason = Literal["cancelled", "interrupted", "lost", "paused"]
"""Why work ends before its answer: somebody cancelled or paused it, its worker is to stop, or its
claim does not hold any longer."""
log = logging.getLogger(__name__)


class ServiceAway(Exception):
    """The service that a worker takes its jobs from does not answer; it may come back."""


AWAY = (OperationalError, ServiceAway)
"""What a call raises where the database, or the service before it, does not answer."""


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """What a lease asks of the work under it. Each may raise one of `AWAY`: the database or
    the service does not answer, and may come back.

    renew: for so many seconds; False where the claim no longer holds.
    reason_to_end: asked several times a second; None while the work goes on.
    give_up: writes down that the work has ended so. May be called twice.
    """

    renew: Callable[[float], bool]
    reason_to_end: Callable[[], EndReason | None]
    give_up: Callable[[EndReason], None]


@contextmanager
def leased(work: ClaimedWork, lease_seconds: float) -> Iterator[None]:
    """Hold the lease while the block runs. Where there is a reason to end the block is cancelled
    (`autosync.cancellation`), and the work given up.

    Raises:
        OperationalError, ServiceAway: the database or the service is away.
    """
    token, done = CancellationToken(), threading.Event()
    if (reason := work.reason_to_end()) is not None:
        token.cancel(reason)
    watch = threading.Thread(
        target=_watch, args=(work, lease_seconds, token, done), name="lease", daemon=True
    )
    watch.start()
    try:
        with cancelled_by(token):
            yield
    except Cancelled as ended:
        work.give_up(ended.reason)  # type: ignore[arg-type]  # it came from `reason_to_end`
    finally:
        done.set()
        watch.join()


def _watch(
    work: ClaimedWork, lease_seconds: float, token: CancellationToken, done: threading.Event
) -> None:
    """Until `done`, or until there is a reason to end."""
    renewed, away = time.monotonic(), False
    while not token.cancelled:
        if done.wait(POLL_SECONDS):
            return
        now = time.monotonic()
        try:
            reason = work.reason_to_end()
            if reason is None and now - renewed > lease_seconds / 3:
                reason, renewed = (None, now) if work.renew(lease_seconds) else ("lost", now)
            away = False
        except Exception as error:  # whatever it is, it may pass before the lease ends
            if not away:
                log.warning("a lease is not renewed: %s: %s", type(error).__name__, error)
            away = True
            reason = "lost" if now - renewed > lease_seconds else None
        if reason is not None:
            token.cancel(reason)
    if not done.wait(OVERDUE_SECONDS):
        _give_up_in_absence(work, token)


def _give_up_in_absence(work: ClaimedWork, token: CancellationToken) -> None:
    log.warning("given up while it goes on for a moment: %s", token.reason)
    try:
        work.give_up(token.reason)  # type: ignore[arg-type]  # it came from `reason_to_end`
    except Exception as error:  # the end of the thread
        log.warning("not given up: %s", error)
