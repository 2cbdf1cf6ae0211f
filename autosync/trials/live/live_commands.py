"""What rank 0 of a running job tells the other ranks while it is tuned, and what they answer.

LiveTrial    -> LivePass
TimeMessages -> MessagesTimed
RenewGroups, Verdict: nothing is answered

A command that fails is answered by `LiveFailure`.
"""

from dataclasses import dataclass
from typing import Final, Literal

from autosync.bundle import Bundle
from autosync.trials.contract import ErrorKind
from autosync.trials.live.outside_load import CpuUse
from autosync.trials.recorded_pass import RecordedPass
from autosync.trials.worker.commands import MessagesTimed, TimeMessages

PARTED: Final = "parted"
"""The kind of a failure that is another rank's doing: the connection to a peer has closed."""


@dataclass(frozen=True, slots=True)
class RenewGroups:
    """What comes next runs on new process groups: something has ended those before."""


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """One pass of a trial. record: as in a `TrialRequest`; in host memory only, since what a GPU
    does is not seen here. timeout_seconds: no iteration begins later."""

    bundle: Bundle
    warmup: int
    iterations: int
    record: bool
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks go on with; nothing follows. reason: why no tuning stands behind it."""

    bundle: Bundle
    reason: str = ""


LiveCommand = RenewGroups | LiveTrial | TimeMessages | Verdict


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """starts: of all steps, and one moment after the last, on `time.monotonic()`."""

    starts: tuple[float, ...]
    recording: RecordedPass


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """starts: seconds of every step's start since the first, and one after the last.
    within_seconds: of all steps, the warm-up's included. cpu_use, sent_bytes: of the measured ones.
    """

    starts: tuple[float, ...]
    within_seconds: float
    cpu_use: CpuUse
    sent_bytes: int
    recorded: RecordedSteps | None


@dataclass(frozen=True, slots=True)
class LivePass:
    """One rank's pass.

    host: the identity of its kernel. node: the host that the rank counts as. digest: differs
    between replicas that are unequal when the plan is off again; a placed module lives on some
    ranks only before.
    counts_bytes: whether the kernel sees what the rank sends. overhead_seconds: around the steps.
    peak_memory_bytes: of a GPU, what tensors held; else the resident size, None where the kernel
    does not tell.
    """

    host: str
    node: str
    versions: tuple[tuple[str, str], ...]
    steps: MeasuredSteps
    digest: float
    counts_bytes: bool
    overhead_seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class LiveFailure:
    """Why a rank's part of a command failed, and how many seconds after its begin."""

    seconds: float
    kind: ErrorKind | Literal["parted"]
    message: str


LiveAnswer = LivePass | MessagesTimed | LiveFailure
