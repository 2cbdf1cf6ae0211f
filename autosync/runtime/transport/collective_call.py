"""Calls of the script that every rank has to make: a rank that waits in one alone says so."""

import logging
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

log = logging.getLogger("autosync")

PATIENCE_SECONDS = 5.0
"""How long a rank waits in such a call before it says for whom. Others may be late for a good
reason, so it goes on waiting, for the process group's timeout."""


class CollectiveCalls:
    """Meets the other ranks at the beginning of each call.

    group: of all ranks, for this alone: whatever the others do meanwhile, nothing of it can be
    taken for their arrival. store: keys of one attached plan only.
    because: why every rank has to come.
    """

    def __init__(
        self,
        group: Any,
        store: Store,
        because: str = "no rank holds all of the optimizer's state",
    ):
        self._group = group
        self._store = PrefixStore("calls", store)
        self._because = because
        self._calls = 0

    def meet(self, what: str) -> None:
        """Wait until every rank has called it.

        Raises:
            DistBackendError: a rank died, or did not come in the process group's timeout.
        """
        self._calls += 1
        self._store.set(self._key(self._group.rank()), what)
        arrival = self._group.barrier(dist.BarrierOptions())
        try:
            arrival.wait(timedelta(seconds=PATIENCE_SECONDS))
        except RuntimeError as error:
            if arrival.is_completed():
                raise self._failed(what, error) from error
            self._warn(what)
            self._wait_on(arrival, what)
        if self._calls > 1:  # every rank has left the call before
            self._store.delete_key(self._key(self._group.rank(), self._calls - 1))

    def _wait_on(self, arrival: Any, what: str) -> None:
        try:
            arrival.wait()
        except RuntimeError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: RuntimeError) -> dist.DistBackendError:
        return dist.DistBackendError(f"{self._words(what, self._missing())}: {error}")

    def _warn(self, what: str) -> None:
        missing = self._missing()
        if not missing:
            return
        message = (
            f"{self._words(what, missing)} in {PATIENCE_SECONDS:g} s. Under this plan "
            f"{self._because}, and {what} gathers it: call it on every rank, and write the file "
            "on one."
        )
        log.warning(message)
        warnings.warn(message, stacklevel=2)

    def _missing(self) -> list[int]:
        ranks = range(self._group.size())
        return [rank for rank in ranks if not self._store.check([self._key(rank)])]

    def _words(self, what: str, missing: list[int]) -> str:
        here = f"rank {self._group.rank()} waits in {what}"
        if not missing:
            return f"{here} for a rank that has called it too"
        others = f"rank {missing[0]} has" if len(missing) == 1 else f"ranks {missing} have"
        return f"{here}, which {others} not called"

    def _key(self, rank: int, call: int = 0) -> str:
        return f"{call or self._calls}/{rank}"
