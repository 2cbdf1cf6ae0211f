"""What a trial is, and the two small protocols that run one."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pydantic import ConfigDict

from autosync.bundle import Bundle
from autosync.documents import STRICT
from autosync.domain import Domain
from autosync.trials.timeline import MeasuredTimeline

ErrorKind = Literal["out_of_memory", "timeout", "crashed", "refused", "cancelled"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What the workers run.

    name: `replay` (the graph replayed: compute waited out, gradients really moved) or a name
        registered where the worker starts. A request never names a module.
    byte_scale s, time_scale k: every message carries s times its bytes, links run at
        bandwidth * s / k, compute waits k times as long; reported seconds are measured / k.
    """

    domain: Domain
    name: str = "replay"
    byte_scale: float = 1.0
    time_scale: float = 1.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """key: identifies the trial; a pool asked twice for one key runs it once.

    Each of `passes` passes runs `warmup` iterations and then measures `iterations`.
    record: also note when each message and each phase of compute ran. That costs a few us a
        message, and a kilobyte per 10 messages and rank in the result, so it is asked for.
    """

    key: str
    bundle: Bundle
    warmup: int = 2
    iterations: int = 5
    passes: int = 1
    timeout_seconds: float = 60.0
    record: bool = False
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class TrialError:
    """stderr_tail: the end of what the failed worker wrote."""

    kind: ErrorKind
    message: str
    stderr_tail: str = ""
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One strategy measured by real execution, or why it could not be.

    iteration_seconds: measured periods of all passes, in the domain's time (divided by k).
    step_seconds: their median; None on error. spread: (p90 - p10) / median.
    launcher: where it was measured, e.g. `testbed` or `local (unshaped links)`.
    load: share of the CPU used by others meanwhile; None in a running job, whose own helper
        processes cannot be told from others. overhead_seconds: wall time around the iterations
        (sending the plan, building the engine, collecting).
    peak_memory_bytes: the largest resident size of any rank.
    sent_bytes: by each node's NIC in one iteration, as it travelled (scaled, with headers);
        empty where links are not told apart. A running job's node may have sent other things,
        too. versions: of torch, autosync and python.
    timeline: where the request asked to `record`. In a running job only where it trains in host
        memory and its step has one forward pass and one update; what the step does before and
        after the forward pass then counts as forward and as backward.
    """

    key: str
    iteration_seconds: tuple[float, ...]
    step_seconds: float | None
    spread: float | None
    error: TrialError | None
    launcher: str
    byte_scale: float
    time_scale: float
    load: float | None = None
    overhead_seconds: float = 0.0
    peak_memory_bytes: int | None = None
    sent_bytes: tuple[int, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    timeline: MeasuredTimeline | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


class Pool(Protocol):
    """Warm workers that take plan after plan."""

    @property
    def description(self) -> str:
        """Where trials run, in words that reports repeat."""
        ...

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy. Never raises for what the trial itself does wrong."""
        ...

    def close(self) -> None:
        """Leave no process, namespace or file behind. May be called twice."""
        ...


class Launcher(Protocol):
    """Opens pools of workers for a workload on some kind of machine."""

    @property
    def name(self) -> str: ...

    def open(self, workload: Workload) -> Pool: ...
