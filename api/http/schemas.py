"""What requests and answers of the REST API look like. Documents have schemas of their own."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from autosync.domain import Optimizer, Profile
from autosync.search.space import Space
from autosync.simulator.timeline.iteration_trace import ComputeInterval
from autosync.simulator.timeline.measured_iteration import Difference
from autosync.trials.contract import ComputeDevice, ComputeKind
from autosync.trials.launcher_names import LauncherName

State = Literal["queued", "running", "cancelling", "finished", "failed", "cancelled"]


def _moment(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
"""Seconds since the epoch in the database, ISO 8601 in answers."""
Positive = Annotated[int, Field(ge=1)]


class ResponseModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class TuningBody(BaseModel):
    """What to tune, and how long and how widely to search."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    graph: str = Field(
        max_length=200, description="Id of a posted graph, or the name of a bundled model."
    )
    cluster: str = Field(
        max_length=200, description="Id of a posted cluster, or the name of a bundled one."
    )
    budget: int = Field(24, ge=1, le=10_000, description="Strategies to try by real execution.")
    batch_size: int | None = Field(
        None, ge=1, le=2**20, description="Of one replica; only for bundled models."
    )
    optimizer: Optimizer = Optimizer()
    profile: Profile | None = Field(
        None, description="Measured compute seconds; without it they are estimated."
    )
    space: Space = Field(
        Space(), description="Allowances (which choices may be taken) and pins (which must be)."
    )
    proposals: int = Field(30_000, ge=1, le=10_000_000, description="Sampled in a round.")
    repeats: int = Field(10, ge=1, le=1000, description="Interleaved repeats of the finalists.")
    iterations: int = Field(5, ge=1, le=10_000, description="Measured in each pass of a trial.")
    warmup: int = Field(2, ge=0, le=10_000)
    seed: int = Field(0, ge=0, lt=2**53)
    probe: bool = Field(
        True, description="Measure what messages cost first, unless the cluster brings its costs."
    )
    simulator: str = Field(
        "learned",
        max_length=32,
        description="What ranks proposals: `timeline` plays the plans, `learned` also corrects it "
        "by the tuning's own trials, `analytic` is the papers' equations; or the name of a trained "
        "one (GET /v1/simulators), which the tuning's trials go on teaching; `nearest` is the "
        "trained one that has learned from the most similar domain.",
    )
    launcher: LauncherName = "auto"
    byte_scale: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Every message carries this share of its bytes; by default the largest that "
        "a small machine carries for this cluster.",
    )
    time_scale: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="The emulated cluster runs this many times slower; by default as the byte "
        "scale.",
    )
    compute: ComputeKind = Field(
        "waited",
        description="What stands for the model's compute in trials: its profiled seconds, waited "
        "out, or `kernels` of its operations' shapes, whose seconds are measured first. Kernels "
        "go with scales of 1.",
    )
    compute_device: ComputeDevice = Field(
        "cpu",
        description="Where the worker's trials compute: `cuda` needs GPUs there, and kernels.",
    )


class TuningForm(BaseModel):
    """The dashboard's form: as `TuningBody`, but empty where the default is meant."""

    graph: str
    cluster: str
    budget: str = ""
    batch_size: str = ""
    launcher: str = ""
    simulator: str = ""
    byte_scale: str = ""
    time_scale: str = ""
    repeats: str = ""
    seed: str = ""


class Kept(ResponseModel):
    """A document that was posted; posting it again gives the same id."""

    id: str
    name: str
    location: str


class GraphSummary(ResponseModel):
    id: str
    name: str
    batch_size: int
    variables: int
    parameters: int
    size_bytes: int
    created_at: Moment


class BundledModel(ResponseModel):
    name: str
    title: str
    batch_size: int
    parameters: int


class Graphs(ResponseModel):
    items: list[GraphSummary]
    bundled: list[BundledModel]


class ClusterSummary(ResponseModel):
    id: str
    name: str
    nodes: int
    world_size: int
    created_at: Moment


class Clusters(ResponseModel):
    items: list[ClusterSummary]
    bundled: list[str]


class TrainedSimulator(ResponseModel):
    """domains, trials: what it learned from. accuracy: pairs of strategies it had not seen that it
    ranked rightly; `unseen` says which. feature_version: of what it reads; a service uses only
    those of its own version."""

    name: str
    kind: str
    feature_version: int
    domains: int
    trials: int
    accuracy: float | None
    unseen: str
    size_bytes: int
    created_at: Moment


class Simulators(ResponseModel):
    items: list[TrainedSimulator]
    bundled: list[str]


class Progress(ResponseModel):
    """done of total trials of the phase; ranked: proposals looked at so far."""

    phase: str
    message: str
    done: int
    total: int
    ranked: int
    trials: int


class Result(ResponseModel):
    """speedup: median over interleaved repeats of DDP's time by the best's, with percentiles 10
    and 90."""

    words: str
    strategy_id: str
    best_seconds: float
    ddp_seconds: float
    speedup: float
    speedup_low: float
    speedup_high: float
    repeats: int
    keep_ddp: bool


class Tuning(ResponseModel):
    id: str
    state: State
    domain_id: str
    graph_id: str
    graph: str
    batch_size: int
    cluster_id: str
    cluster: str
    world_size: int
    profile_source: Literal["measured", "estimated"]
    launcher: str
    byte_scale: float
    time_scale: float
    compute: ComputeKind
    compute_device: ComputeDevice
    simulator: str
    settings: dict[str, Any]
    progress: Progress
    best_seconds: float | None = Field(description="Of the fastest trial so far.")
    result: Result | None
    error: str | None
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None


class Tunings(ResponseModel):
    items: list[Tuning]
    total: int


class RankedStrategy(ResponseModel):
    """step_seconds, spread: over all measured iterations; of the confirmation alone where there
    was one. speedup: DDP's time by this one's; over interleaved repeats where confirmed."""

    rank: int
    strategy_id: str
    words: str
    origin: str
    simulator: str
    predicted_seconds: float
    step_seconds: float | None
    spread: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    confirmed: bool
    is_ddp: bool
    trials: int
    recorded: bool = Field(description="Whether a trial of it recorded its timeline.")
    error: str | None


class RankedStrategies(ResponseModel):
    tuning_id: str
    byte_scale: float
    time_scale: float
    items: list[RankedStrategy]


class Trial(ResponseModel):
    key: str
    position: int
    phase: str
    round: int
    strategy_id: str
    words: str
    origin: str
    predicted_seconds: float
    step_seconds: float | None
    spread: float | None
    iteration_seconds: list[float]
    error_kind: str | None
    error_message: str | None
    launcher: str
    byte_scale: float
    time_scale: float
    load: float | None
    overhead_seconds: float
    peak_memory_bytes: int | None
    sent_bytes: list[int] | None = Field(
        description="Of each node's NIC in one iteration, as they travelled (times byte_scale)."
    )
    recorded: bool = Field(description="Whether it recorded its timeline.")
    versions: dict[str, str]
    created_at: Moment


class Trials(ResponseModel):
    tuning_id: str
    items: list[Trial]


class TimelineMessage(ResponseModel):
    """message: its place in the plan. turn: from when on its channel worked for it."""

    message: int
    operation: str
    channel: str
    wire_bytes: int
    ranks: list[int]
    issued_seconds: float
    turn_seconds: float
    arrived_seconds: float


class Iteration(ResponseModel):
    """From the forward start of the slowest rank over one iteration to the end of the next forward
    pass; seconds are the domain's and count from that start. messages: of this iteration; null
    where none were recorded."""

    step_seconds: float
    compute: list[ComputeInterval]
    messages: list[TimelineMessage] | None


class Timeline(ResponseModel):
    """One strategy's iteration as the timeline simulator predicts it, and as a trial recorded it.

    measured: null where no trial recorded it. clock: `shared` where all ranks read one machine's
    clock; `by host` where times of different hosts compare only as far as their latest forward
    starts coincide. differences: where the two differ most first.
    """

    tuning_id: str
    strategy_id: str
    words: str
    is_ddp: bool
    trial: str | None
    clock: Literal["shared", "by host"] | None
    predicted: Iteration
    measured: Iteration | None
    differences: list[Difference]


class Cancelled(ResponseModel):
    id: str
    state: State


class Health(ResponseModel):
    status: Literal["ok"]
    version: str
    database: str
    schema_revision: str
    queued: int
    running: int


class Problem(BaseModel):
    """application/problem+json (RFC 9457): thing, value and remedy are what to mend."""

    type: str
    title: str
    status: int
    detail: str
    thing: str = ""
    value: str = ""
    remedy: str = ""
