"""The `job` launcher's pool: the ranks of a running training job take plan after plan."""

import math
from dataclasses import dataclass, field

from autosync.cluster import MessageKind
from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.live.live_commands import Verdict
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.live_transport import LiveTransport
from autosync.trials.pool.worker_answers import message_seconds
from autosync.trials.trial_procedure import TrialProcedure
from autosync.trials.worker.commands import TimeMessages

REPEATS = 1
"""How often a pass under outside load is measured again: the job's time is short."""


@dataclass
class JobPool:
    """The Pool protocol on rank 0, and `MessagePool`. A trial that fails restores every rank and
    costs itself only. Ranks are the job's own and are not killed: a collective that hangs ends with
    its timeout, and a trial whose steps take longer than the request allows before the next step.
    `close` leaves the ranks serving, so that another pool may follow; `dismiss` ends that.

    until: of `time.monotonic()`; no step of a trial begins later.
    """

    job: LiveJob
    description: str
    until: float = math.inf
    repeats: int = REPEATS
    scales: tuple[float, float] = (1.0, 1.0)
    at_cluster_rates: bool = True
    shaped: bool = False
    _transport: LiveTransport = field(init=False)
    _procedure: TrialProcedure = field(init=False)

    def __post_init__(self) -> None:
        self._transport = LiveTransport(self.job, self.description, self.until)
        self._procedure = TrialProcedure(self._transport, self.repeats)

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        return self._procedure.run(request)

    def time_messages(
        self, kind: MessageKind, size_bytes: int, workers: tuple[int, ...], repeats: int
    ) -> list[float]:
        """Seconds of each message of a kind among the ranks `workers`. Raises TrialFailed."""
        command = TimeMessages(kind, size_bytes, workers, repeats)
        return message_seconds(self._transport.time_messages(command))

    def renew_groups(self) -> None:
        """The next trial finds new process groups; those of single messages end then."""
        self._transport.reset_ranks()

    def close(self) -> None:
        """Nothing to leave behind: the ranks are the job's own."""

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        self._transport.dismiss(verdict)
