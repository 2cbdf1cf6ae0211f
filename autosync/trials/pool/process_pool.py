"""ProcessPool: the Pool protocol over worker processes, whatever prefix starts them."""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from autosync.cluster import MessageKind
from autosync.environment import REPEATS_VARIABLE
from autosync.errors import InvalidInput
from autosync.trials.contract import TrialRequest, TrialResult, Workload
from autosync.trials.pool.worker_answers import message_seconds
from autosync.trials.pool.worker_group import A
from autosync.trials.pool.worker_transport import Links, WorkerTransport
from autosync.trials.trial_procedure import TrialProcedure
from autosync.trials.worker.commands import (
    Command,
    MessagesTimed,
    StretchesTimed,
    TimeMessages,
    TimeStretches,
)

REPEATS = 2
"""How often a contaminated pass is measured again, unless the environment says otherwise."""

MESSAGES_TIMEOUT_SECONDS = 60.0


def usual_repeats() -> int:
    """AUTOSYNC_REPEATS, or REPEATS: on a machine that is never quiet, 0 saves a wait of seconds
    before a pass that is disturbed as well.

    Raises:
        InvalidInput: the variable holds no count.
    """
    given = os.environ.get(REPEATS_VARIABLE, "")
    if given and not re.fullmatch("[0-9]{1,3}", given):
        raise InvalidInput(
            f"{REPEATS_VARIABLE} is {given!r}, which is no count.",
            thing=REPEATS_VARIABLE,
            value=given,
            remedy="Give 0 to 999, or leave it out.",
        )
    return int(given) if given else REPEATS


@dataclass
class ProcessPool:
    """Runs trials one at a time on warm workers; safe to share between threads.

    repeats: how often a contaminated pass is measured again.
    on_close: takes down what the launcher built for the workers.
    """

    transport: WorkerTransport
    repeats: int = field(default_factory=usual_repeats)
    on_close: Callable[[], None] | None = None
    procedure: TrialProcedure = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: bool = False

    def __post_init__(self) -> None:
        self.procedure = TrialProcedure(self.transport, self.repeats)

    @property
    def description(self) -> str:
        return self.transport.description

    @property
    def workload(self) -> Workload:
        return self.transport.workload

    @property
    def scales(self) -> tuple[float, float]:
        """Byte scale s and time scale k."""
        return self.transport.scales

    @property
    def links(self) -> Links:
        return self.transport.links

    @property
    def shaped(self) -> bool:
        """Whether links are emulated, so that what each node's sends is known."""
        return self.links == "shaped"

    @property
    def at_cluster_rates(self) -> bool:
        """Whether messages show the cluster's links, emulated or real."""
        return self.links != "loopback"

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        with self._lock:
            self.transport.cancelled.clear()
            self._running = True
            try:
                return self.procedure.run(request)
            finally:
                self._running = False

    def warm_up(self) -> None:
        """Start the workers now.

        Raises:
            TrialFailed: they could not start.
        """
        with self._lock:
            self.transport.cancelled.clear()
            with self.transport.machine_held():
                self.transport.warm_group()

    @property
    def busy(self) -> bool:
        """Whether a trial runs."""
        return self._running

    def cancel(self) -> None:
        """Stop the trial that runs now, from another thread; its workers die with it."""
        if self._running:
            self.transport.cancelled.set()

    def close(self) -> None:
        self.cancel()
        with self._lock:
            self.transport.closed = True
            on_close, self.on_close = self.on_close, None
            try:
                self.transport.reset_ranks()
            finally:
                if on_close is not None:
                    on_close()

    def __enter__(self) -> "ProcessPool":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def worker_pids(self) -> list[int]:
        return self.transport.pids()

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds (of the workers' clocks) of each message of a kind among the ranks `workers`.
        Raises TrialFailed as `ask`."""
        command = TimeMessages(kind, size_bytes, workers, repeats)
        return message_seconds(self.ask(command, MessagesTimed, MESSAGES_TIMEOUT_SECONDS))

    def time_stretches(self, repeats: int, timeout_seconds: float) -> list[StretchesTimed]:
        """What each rank's stretches of the replay take, all ranks computing at once. Raises
        TrialFailed as `ask`."""
        return self.ask(TimeStretches(repeats), StretchesTimed, timeout_seconds)

    def ask(self, command: Command, answered_by: type[A], timeout_seconds: float) -> list[A]:
        """What every rank answers to one command that is no trial; see `worker.commands`.

        Raises:
            TrialFailed: a worker failed or hung.
        """
        with self._lock:
            self.transport.cancelled.clear()
            try:
                with self.transport.machine_held():
                    return self.transport.warm_group().ask(command, answered_by, timeout_seconds)
            except BaseException:  # the ranks may still be at work on it
                self.transport.reset_ranks()
                raise
