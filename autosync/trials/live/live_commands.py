"""What rank 0 of a running job tells the other ranks while it is tuned, and what they answer."""

from dataclasses import dataclass
from typing import Final, Literal

from autosync.bundle import Bundle
from autosync.trials.contract import ErrorKind
from autosync.trials.live.outside_load import CpuUse
from autosync.trials.recorded_pass import RecordedPass

PARTED: Final = "parted"
"""The kind of a failure that is another rank's doing: the connection to a peer has closed."""


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """One pass of a trial. record: as in a `TrialRequest`; in host memory only, since what a GPU
    does is not seen here. renew_groups: a trial before has ended the process groups."""

    bundle: Bundle
    warmup: int
    iterations: int
    record: bool
    renew_groups: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks go on with; no trial follows. bundle: None for torch's DDP, for `reason`."""

    bundle: Bundle | None
    reason: str = ""


LiveCommand = LiveTrial | Verdict


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """starts: of all steps, and one moment after the last, on `time.monotonic()`."""

    starts: tuple[float, ...]
    recording: RecordedPass


@dataclass(frozen=True, slots=True)
class LivePass:
    """One rank's pass.

    host: the identity of its kernel. node: the host that the rank counts as.
    starts: seconds of every step's start since the first, and one after the last.
    overhead_seconds: around the steps. cpu_use, sent_bytes: of the measured ones; no bytes on a
        GPU. peak_memory_bytes: None where the kernel does not tell.
    digest: differs between replicas that are unequal.
    """

    host: str
    node: str
    versions: tuple[tuple[str, str], ...]
    starts: tuple[float, ...]
    overhead_seconds: float
    cpu_use: CpuUse
    sent_bytes: int | None
    peak_memory_bytes: int | None
    digest: float
    recorded: RecordedSteps | None


@dataclass(frozen=True, slots=True)
class LiveFailure:
    """Why a rank's pass failed, and how many seconds after its begin."""

    seconds: float
    kind: ErrorKind | Literal["parted"]
    message: str


LiveAnswer = LivePass | LiveFailure
