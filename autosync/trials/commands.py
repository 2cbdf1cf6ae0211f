"""The commands that a pool sends to its ranks, and their answers.

    StartWorker   -> WorkerStarted
    JoinGroup     -> GroupJoined
    RunPass       -> PassDone
    TimeMessages  -> MessagesTimed
    TimeStretches -> StretchesTimed

Worker processes receive and answer them as JSON lines: `{"command": {"op": ...}}`, `{"answer":
{"reply": ...}}`, which other output of a program does not match. A worker answers `CommandFailed`
to whatever goes wrong. The ranks of a running job receive `RunPass` and `TimeMessages` as objects
(`live.job_pool`).
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from autosync.bundle import Bundle
from autosync.cluster import MessageKind
from autosync.documents import adapter, from_json, to_json
from autosync.runtime.execution.execution_trace import DealOperation
from autosync.trials.contract import ErrorKind, Workload


class OnWire:
    """Fields that are unknown are refused. Not the configuration of documents: the digest of a
    diverged replica may be NaN."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class StartWorker(OnWire):
    """Build the job of the workload. host: rank 0's address as the others see it. environment:
    variables that the process takes on first. tuner_configuration: of NCCL's example tuner plugin,
    which the process keeps as the file that such a variable names; empty for none."""

    rank: int
    local_rank: int
    host: str
    workload: Workload
    environment: dict[str, str] = field(default_factory=dict)
    tuner_configuration: str = ""
    op: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class WorkerStarted(OnWire):
    """port: of the store that rank 0 has opened; 0 on the others. scaled: whether the job's
    variables are scaled by the byte scale. gpu: the UUID of the rank's, empty in host memory.
    nccl_host: what NCCL takes for the rank's host. mps: whether the rank runs by CUDA MPS."""

    port: int
    scaled: bool
    gpu: str = ""
    nccl_host: str = ""
    mps: bool = False
    reply: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class JoinGroup(OnWire):
    """Meet the other ranks in rank 0's store. peer: a host other than rank 0's; empty where there
    is none."""

    host: str
    port: int
    world_size: int
    peer: str
    op: Literal["join"] = "join"


@dataclass(frozen=True, slots=True)
class GroupJoined(OnWire):
    """host: the identity of the kernel that the rank runs on. versions: by name."""

    host: str
    versions: dict[str, str]
    reply: Literal["joined"] = "joined"


@dataclass(frozen=True, slots=True)
class RunPass(OnWire):
    """One pass of a trial. bundle: None for the plan of the pass before. compute_slowdown: see
    `TrialRequest`. timeout_seconds: no iteration begins later; None where the pool kills ranks."""

    key: str
    warmup: int
    iterations: int
    record: bool
    bundle: Bundle | None = None
    compute_slowdown: float = 1.0
    timeout_seconds: float | None = None
    op: Literal["pass"] = "pass"


@dataclass(frozen=True, slots=True)
class MeasuredIterations(OnWire):
    """starts: on the host's `time.monotonic()`, of all forward passes and one moment after the last
    iteration. finished: when the last synchronization ended. cpu_seconds: of this process, and in a
    running job of all that it started; busy_seconds, total_seconds: of its machine, all during the
    measured iterations, as are sent_bytes."""

    starts: tuple[float, ...]
    finished: float
    cpu_seconds: float
    busy_seconds: float
    total_seconds: float
    sent_bytes: int


class RecordedMessage(NamedTuple):
    """iteration: counted from the first of the warm-up. message: index into the shipped plan."""

    iteration: int
    message: int
    queued_seconds: float
    started_seconds: float
    ended_seconds: float


class RecordedDeal(NamedTuple):
    """An exchange at the border of a placed module; as `execution_trace.DealEvent`."""

    operation: DealOperation
    started_seconds: float
    ended_seconds: float
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """What a rank noted in one pass, on its host's `time.monotonic()`.

    begins, forwards: when the forward pass of each batch began and ended; as many batches in every
    iteration. backwards: when each iteration's last backward pass ended. waits: (begin, end) of
    where the script waited for messages. messages: of the measured iterations; None under torch's
    own engines. deals: in order, of all iterations.
    """

    begins: tuple[float, ...]
    forwards: tuple[float, ...]
    backwards: tuple[float, ...]
    waits: tuple[tuple[float, float], ...]
    messages: tuple[RecordedMessage, ...] | None
    deals: tuple[RecordedDeal, ...] = ()


@dataclass(frozen=True, slots=True)
class PassDone(OnWire):
    """host: the identity of the rank's kernel. digest: differs between replicas that are unequal
    once the plan is off. peak_memory_bytes: None where the kernel does not say. recording: where
    it was asked for and the iterations have one forward pass a batch and one update. nic: of the
    running job's host whose counter `sent_bytes` comes from; empty where messages need not pass it.
    """

    measured: MeasuredIterations
    host: str
    peak_memory_bytes: int | None
    digest: float
    recording: RecordedPass | None = None
    nic: str = ""
    reply: Literal["pass"] = "pass"


@dataclass(frozen=True, slots=True)
class TimeMessages(OnWire):
    """Time `repeats` messages of one kind among the ranks `workers`."""

    kind: MessageKind
    size_bytes: int
    workers: tuple[int, ...]
    repeats: int
    op: Literal["messages"] = "messages"


@dataclass(frozen=True, slots=True)
class MessagesTimed(OnWire):
    """started, ended: of each message, on the host's `time.monotonic()`; empty on a rank that
    took no part."""

    host: str
    started: tuple[float, ...]
    ended: tuple[float, ...]
    reply: Literal["messages"] = "messages"


@dataclass(frozen=True, slots=True)
class TimeStretches(OnWire):
    """Time the stretches of a replay, all ranks computing at once."""

    repeats: int
    op: Literal["stretches"] = "stretches"


@dataclass(frozen=True, slots=True)
class StretchesTimed(OnWire):
    """operations, backward: of each stretch, the operation that its seconds count for, and whether
    it is one of the backward pass. seconds: medians. update_seconds: of the optimizer's step."""

    operations: tuple[int, ...]
    backward: tuple[bool, ...]
    seconds: tuple[float, ...]
    update_seconds: float
    device: str
    reply: Literal["stretches"] = "stretches"


PEER_LOST: Final = "peer_lost"
"""The kind of a failure that another rank caused: the connection to a peer has closed."""

FailureKind = ErrorKind | Literal["peer_lost"]


@dataclass(frozen=True, slots=True)
class CommandFailed(OnWire):
    """seconds: after the begin of the command; 0 where that is not known."""

    kind: FailureKind
    message: str
    seconds: float = 0.0
    reply: Literal["error"] = "error"


Command = StartWorker | JoinGroup | RunPass | TimeMessages | TimeStretches
Answer = WorkerStarted | GroupJoined | PassDone | MessagesTimed | StretchesTimed | CommandFailed


@dataclass(frozen=True, slots=True)
class CommandLine(OnWire):
    command: Annotated[Command, Field(discriminator="op")]


@dataclass(frozen=True, slots=True)
class AnswerLine(OnWire):
    answer: Annotated[Answer, Field(discriminator="reply")]


def build_adapters() -> None:
    """Build the validators now; else the first line would wait for them."""
    adapter(CommandLine)
    adapter(AnswerLine)


def command_line(command: Command) -> str:
    return adapter(CommandLine).dump_json(CommandLine(command)).decode()


def read_command(line: str) -> Command:
    """Raises InvalidInput for an unknown command or a damaged line: names what is wrong."""
    return from_json(CommandLine, line, "worker command").command


def answer_line(answer: Answer) -> str:
    return to_json(AnswerLine(answer))


def read_answer(line: str) -> Answer | None:
    """None where the line is no answer.

    Raises:
        InvalidInput: it is a damaged one.
    """
    if not line.startswith('{"answer"'):
        return None
    return from_json(AnswerLine, line, "worker answer").answer
