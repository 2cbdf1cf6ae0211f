"""A trial: its request, its result, and the two small protocols that run one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import ConfigDict

from autosync.bundle import Bundle
from autosync.cluster import Backend
from autosync.documents import STRICT, UNLESS_NONE
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.runtime.execution.execution_trace import DealOperation
from autosync.trials.request_names import ComputeDevice, ComputeKind

ErrorKind = Literal["out_of_memory", "over_budget", "timeout", "crashed", "refused", "cancelled"]
"""docs/trials.md says when it is which; `cancelled` stands in results stored before."""

LACKS_MEMORY: frozenset[ErrorKind] = frozenset({"out_of_memory", "over_budget"})
"""Kinds of error that a strategy with less memory may avoid: the device ran out of memory, or a
step did not fit its budget."""

LEAVES_RANKS_USABLE: frozenset[ErrorKind] = frozenset({"refused", "over_budget"})
"""Kinds after which a rank is unchanged, and can take another plan."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The program that the workers run, and its device.

    name: `replay` (the graph replayed: gradients really moved) or a name registered where the
        worker starts. A request never names a module.
    byte_scale s, time_scale k: every message carries s times its bytes, links run at
        bandwidth * s / k, compute waits k times as long; reported seconds are measured / k.
    compute: of a replay. `waited` sleeps for the profiled seconds; `kernels` runs kernels of the
        operations' shapes, whose duration cannot be scaled, so nothing else is scaled either.
    device: where the model is, and its gradients: in host memory, or on a GPU.

    Raises:
        InvalidInput: kernels at a scale other than 1, or on a device with a slowdown; or a replay
            that waits on a GPU.
    """

    domain: Domain
    name: str = "replay"
    byte_scale: float = 1.0
    time_scale: float = 1.0
    compute: ComputeKind = "waited"
    device: ComputeDevice = "cpu"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        if self.compute == "kernels":
            self.refuse_scales("kernels", ", or choose compute waited")
            self._refuse_slowdown()
        elif self.device == "cuda" and self.name == "replay":
            raise InvalidInput(
                "compute that sleeps leaves a GPU idle: messages would run on a device that "
                "nothing else uses, unlike in training.",
                thing="compute",
                value=self.compute,
                remedy="Choose kernels with cuda (--compute kernels --compute-device cuda), or "
                "waited with cpu.",
            )

    @property
    def backend(self) -> Backend:
        """The backend: on GPUs the cluster's, for which plans and predictions are made; in host
        memory always gloo."""
        return self.domain.cluster.backend if self.device == "cuda" else "gloo"

    @property
    def compute_words(self) -> str:
        """For reports; empty for compute `waited`."""
        if self.compute == "waited":
            return ""
        return "kernels on the CPU" if self.device == "cpu" else f"CUDA kernels, {self.backend}"

    def refuse_scales(self, what: str, otherwise: str = "") -> None:
        """what: the ranks compute, in the plural. otherwise: ends the remedy.

        Raises:
            InvalidInput: messages or links are scaled, and such compute cannot be.
        """
        for thing, scale in (("byte_scale", self.byte_scale), ("time_scale", self.time_scale)):
            if scale != 1:
                raise InvalidInput(
                    f"{thing} is {scale:g}, but {what} take the time they take: beside them "
                    "neither messages nor links can be scaled.",
                    thing=thing,
                    value=scale,
                    remedy=f"Leave {thing} out (or give 1){otherwise}.",
                )

    def _refuse_slowdown(self) -> None:
        for node in self.domain.cluster.nodes:
            for device in node.devices:
                if device.slowdown != 1:
                    raise InvalidInput(
                        f"node {node.address!r} has a device with slowdown {device.slowdown:g}, "
                        "but kernels run as fast as the device there does.",
                        thing=f"node {node.address}, slowdown",
                        value=device.slowdown,
                        remedy="Leave slowdown out of the cluster file, or choose compute waited.",
                    )


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """key: identifies the trial; a pool asked twice for one key runs it once.

    Each of `passes` passes runs `warmup` iterations and then measures `iterations`.
    timeout_seconds: of a pass. Pools of worker processes add to it what its iterations are expected
        to take, several times over and at the time scale (`ProcessPool.pass_timeout`).
    expected_seconds: of an iteration in the domain's time, as predicted; 0 where it is not known,
        and where it is infinite or NaN it counts as not known.
    record: also note when each message and each phase of compute ran. That costs a few us a
        message, and a kilobyte per 10 messages and rank in the result, so it is asked for.
    compute_slowdown: how many times longer forward and backward take by the strategy's extensions,
        as predicted; a replay does without them, and waits so much longer instead.
    """

    key: str
    bundle: Bundle
    warmup: int = 2
    iterations: int = 5
    passes: int = 1
    timeout_seconds: float = 60.0
    record: bool = False
    compute_slowdown: float = 1.0
    expected_seconds: float = 0.0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class TrialError:
    """stderr_tail: the end of what the failed worker wrote."""

    kind: ErrorKind
    message: str
    stderr_tail: str = ""
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


class TrialFailed(Exception):
    """Raised within a pool where a trial fails; `TrialPool.run` turns it into a result.
    ranks_usable: every rank refused the plan, and can take another."""

    def __init__(self, error: TrialError, ranks_usable: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.ranks_usable = ranks_usable


Phase = Literal["forward", "backward", "update", "wait"]


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """The phases of a rank's training script: arrays of one length, in order of time.

    phase: in `wait` it waits for messages; `update` is `optimizer.step()`.
    """

    phase: tuple[Phase, ...]
    start_seconds: tuple[float, ...]
    stop_seconds: tuple[float, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        _check_lengths("compute", (self.phase, self.start_seconds, self.stop_seconds))


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The messages that a rank took part in: arrays of one length, in the order it issued them.

    message: index into the messages of the requested bundle's plan; a message that the byte scale
        left nothing of is not here.
    queued_seconds: its gradients were packed, or the message before it had arrived and its update
        was applied. started_seconds: it was the next of its channel, and was handed to the
        backend. ended_seconds: its result was in this rank's buffer.
    """

    message: tuple[int, ...]
    queued_seconds: tuple[float, ...]
    started_seconds: tuple[float, ...]
    ended_seconds: tuple[float, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        times = (self.queued_seconds, self.started_seconds, self.ended_seconds)
        _check_lengths("messages", (self.message, *times))


@dataclass(frozen=True, slots=True)
class DealTimes:
    """A rank's exchanges at the borders of placed modules: arrays of one length, in order of
    time. Every exchange is a collective of all ranks, and the script waits for it (`wait`).

    operation: of samples or their gradients, or of how many samples there are.
    sent_bytes: by this rank to others, without the byte scale.
    """

    operation: tuple[DealOperation, ...]
    start_seconds: tuple[float, ...]
    stop_seconds: tuple[float, ...]
    sent_bytes: tuple[int, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        times = (self.start_seconds, self.stop_seconds)
        _check_lengths("deals", (self.operation, *times, self.sent_bytes))


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """messages: None under torch's own DDP, which does not say when its buckets travel. deals: None
    where no module is placed."""

    compute: ComputeTimes
    messages: MessageTimes | None
    deals: Annotated[DealTimes | None, UNLESS_NONE] = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class MeasuredTimeline:
    """One measured iteration in steady state, and the forward pass after it, on every rank.

    All seconds are the domain's (divided by k) and count from the forward start of the slowest
    rank, so other ranks may begin before 0. What an iteration's messages do may end in the
    forward pass after it.

    step_seconds: of this iteration, the one whose period is nearest to the trial's median.
    clock: `shared` where all ranks read one machine's monotonic clock, so that times of different
        ranks compare. `by host`: each host's clock is set to 0 at the latest forward start of
        its own ranks; times of different hosts compare only as far as these starts coincide.
    ranks: in rank order.
    """

    step_seconds: float
    clock: Literal["shared", "by host"]
    ranks: tuple[RankTimeline, ...]
    version: Literal[1] = 1
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        of_ranks = tuple(each.deals.operation if each.deals else () for each in self.ranks)
        _check_lengths("deals by rank", of_ranks)


def _check_lengths(thing: str, arrays: tuple[tuple[object, ...], ...]) -> None:
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise InvalidInput(
            f"the arrays of a timeline's {thing} have lengths {lengths}; they must be equal.",
            thing=thing,
            value=lengths,
        )


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One strategy measured by real execution, or why it could not be.

    iteration_seconds: measured periods of all passes, in the domain's time (divided by k).
    step_seconds: their median; None on error. spread: (p90 - p10) / median.
    launcher: where it was measured, e.g. `testbed` or `local (unshaped links)`.
    load: share of the CPU used by others meanwhile; what a running job's ranks have started
        (workers of a data loader) is its own. overhead_seconds: wall time around the iterations
        (sending the plan, building the engine, collecting).
    peak_memory_bytes: the largest resident size of any rank; on a GPU, the most that one rank's
        tensors held of its memory.
    sent_bytes: by each node's NIC in one iteration, as it travelled (scaled, with headers);
        empty where NICs have no counters of their own. Hosts that are not emulated may have sent
        other things, too.
    versions: of torch, autosync and python; on a GPU also its name, those of CUDA and NCCL, the
        backend, and how ranks share it (`gpu_sharing`). Where hosts differ, each of theirs; in a
        running job those of rank 0.
    timeline: where the request asked to `record`; of several batches an iteration, from the last
        one on. In a running job only where it trains in host memory and its step has one forward
        pass a batch and one update; what the step does before and after the forward pass then
        counts as forward and as backward.
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
    """Warm workers that run one plan after another."""

    @property
    def description(self) -> str:
        """Where trials run, as reports print it."""
        ...

    def run(self, request: TrialRequest) -> TrialResult:
        """Measure one strategy. A failure of the trial itself is a result, never an exception."""
        ...

    def close(self) -> None:
        """Leave no process, namespace or file behind. May be called twice."""
        ...


class Launcher(Protocol):
    """Opens pools of workers for a workload on some kind of machine."""

    @property
    def name(self) -> str: ...

    def open(self, workload: Workload) -> Pool: ...


OnWait = Callable[[str], None]
"""Receives a message when a pool waits for another measurement on this machine or for ranks to
start, or when its links are not the requested ones."""


@runtime_checkable
class WaitReporter(Protocol):
    """A launcher whose pools report what they wait for."""

    def with_wait_reports(self, on_wait: OnWait) -> Launcher: ...


def reporting_waits(launcher: Launcher, on_wait: OnWait) -> Launcher:
    """The launcher, whose pools report their waits to `on_wait`, each message once. Launchers that
    report none are returned as they are."""
    reported: set[str] = set()

    def once(message: str) -> None:
        if message not in reported:
            reported.add(message)
            on_wait(message)

    return launcher.with_wait_reports(once) if isinstance(launcher, WaitReporter) else launcher
