"""The `job` launcher's pool: the ranks of a running training job take plan after plan."""

from dataclasses import dataclass, field

from autosync.trials.contract import TrialRequest, TrialResult
from autosync.trials.live.live_commands import Verdict
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.live_transport import LiveTransport
from autosync.trials.trial_procedure import TrialProcedure

REPEATS = 1
"""How often a pass under outside load is measured again: the job's time is short."""


@dataclass
class JobPool:
    """The Pool protocol on rank 0. A trial that fails restores every rank and costs itself only;
    one that hangs ends with its collectives' timeout, whatever the request allows: the ranks are
    the job's own and are not killed. `close` leaves the ranks serving, so that another pool may
    follow; `dismiss` ends that."""

    job: LiveJob
    description: str
    repeats: int = REPEATS
    _transport: LiveTransport = field(init=False)
    _procedure: TrialProcedure = field(init=False)

    def __post_init__(self) -> None:
        self._transport = LiveTransport(self.job, self.description)
        self._procedure = TrialProcedure(self._transport, self.repeats)

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy; a key that was run before is answered from memory."""
        return self._procedure.run(request)

    def close(self) -> None:
        """Nothing to leave behind: the ranks are the job's own."""

    def dismiss(self, verdict: Verdict) -> None:
        """Tell all ranks what to go on with."""
        self._transport.dismiss(verdict)
