"""The request to stop a collection, as fits and searches look for one."""

from collections.abc import Callable

from autosync.cancellation import CancellationToken


class StopToken(CancellationToken):
    """Cancelled as soon as `stopped` says so.

    Held where a collection computes or probes, which may take minutes and leaves nothing behind;
    while passes run it asks `stopped` between them, so that none is lost.
    """

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self.reason = "the collection is to stop"
        self._stopped = stopped

    @property
    def cancelled(self) -> bool:
        return self._stopped()
