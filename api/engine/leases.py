"""Leases of claims: renewed on a thread of their own while the work is done."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError

LEASE_SECONDS = 15.0
"""Of a claim; renewed every third of it. The longest wait after a worker was killed."""
log = logging.getLogger(__name__)


@contextmanager
def renewed_lease(renew: Callable[[], bool], lease_seconds: float) -> Iterator[None]:
    """Call `renew` while the block runs, until it says that the claim no longer holds."""
    done = threading.Event()
    thread = threading.Thread(
        target=_renew, args=(renew, lease_seconds, done), name="lease", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _renew(renew: Callable[[], bool], lease_seconds: float, done: threading.Event) -> None:
    """Until `done`, or until the claim no longer holds: the store refuses from then on."""
    renewed = time.monotonic()
    while not done.wait(lease_seconds / 3):
        try:
            if not renew():
                return
            renewed = time.monotonic()
        except OperationalError as error:  # the database may come back before the lease ends
            log.warning("a lease is not renewed: %s", error)
            if time.monotonic() - renewed > lease_seconds:
                return
