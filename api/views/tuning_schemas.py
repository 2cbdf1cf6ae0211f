"""What the REST API answers about tunings: states, answers, ranked strategies and trials."""

from typing import Any, Literal

from pydantic import Field

from autosync.api.views.schemas import Moment, Page, ResponseModel
from autosync.trials.request_names import FAILURES, ComputeDevice, ComputeKind

State = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "finished", "failed", "cancelled"
]


SETTLED_SPREAD = 0.2
"""Iterations of a quiet trial spread by 1 to 5 %, and by up to 15 % where few cores carry much
traffic (docs/results.md); beyond this, something else disturbed them."""


def is_settled(spread: float | None) -> bool:
    """Whether iterations agree well enough to compare them. spread: (p90 - p10) / median."""
    return spread is None or spread <= SETTLED_SPREAD


class TuningProgress(ResponseModel):
    """done of total trials of the phase; ranked: proposals looked at so far."""

    phase: str
    message: str
    done: int
    total: int
    ranked: int
    trials: int


class TuningResult(ResponseModel):
    """speedup: median over interleaved repeats of the baseline's time by the best's, with
    percentiles 10 and 90."""

    words: str
    strategy_id: str
    best_seconds: float
    ddp_seconds: float | None = Field(description="Null where DDP's trials failed: see ddp_error.")
    ddp_error: str | None = Field(
        description="How DDP's first trial failed, `kind: message`; null where it was measured."
    )
    baseline: str = Field(
        description="The design that speed-ups are over: `ddp`; where that could not be measured, "
        "the fastest other one that could."
    )
    speedup: float
    speedup_low: float
    speedup_high: float
    repeats: int
    keep_ddp: bool
    limit_seconds: float | None = Field(
        description="No strategy of the tuning's space iterates in fewer; null in old answers."
    )
    spread: float | None = Field(
        description="Of the iterations of the answer or of its baseline, the larger one: "
        "(p90 - p10) / median."
    )

    @property
    def settled(self) -> bool:
        """Whether the repeats agree well enough to believe the speed-up."""
        return is_settled(self.spread)

    @property
    def percent_of_limit(self) -> float | None:
        """How near the answer is to what no strategy can beat; None where that is not known."""
        if self.limit_seconds is None:
            return None
        return 100 * self.limit_seconds / self.best_seconds

    @property
    def ddp_fits(self) -> bool:
        """False where DDP ran out of memory."""
        return kind_of(self.ddp_error) != "out_of_memory"

    @property
    def what_ddp_did(self) -> str:
        """What happened to DDP where another design is the baseline, from its trial."""
        return what_happened(self.ddp_error)

    @property
    def ddp_is_too_large(self) -> bool:
        """Whether DDP ran in trials, which need less memory than training, but is predicted not to
        fit: `confirm.conclude` has no other reason for an answer that is no faster than DDP."""
        return not self.keep_ddp and self.ddp_seconds is not None and self.speedup <= 1.0

    @property
    def keeps_baseline(self) -> bool:
        """Whether another design than DDP is the baseline, and nothing was faster beyond doubt."""
        equal = self.speedup_low == self.speedup == self.speedup_high == 1.0
        return self.ddp_seconds is None and equal

    @property
    def compared_with(self) -> str:
        """What speed-ups are over, in a word."""
        return self.baseline if self.ddp_seconds is None else "DDP"


def kind_of(error: str | None) -> str:
    """Of `kind: message`."""
    return (error or "").partition(":")[0]


def what_happened(error: str | None) -> str:
    """To a strategy in its trials, in words. error: `kind: message` of the first that failed."""
    return FAILURES.get(kind_of(error), "was not tried")


class Tuning(ResponseModel):
    id: str
    state: State
    domain_id: str
    graph_id: str
    graph: str
    batch_size: int
    accumulate: int = Field(1, description="Batches of an update: iterations are of all of them.")
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
    simulator_version: int | None = Field(
        description="Of the trained simulator; 0 is the bundled one, null for untrained ones."
    )
    settings: dict[str, Any]
    space: str = Field(description="Its name, such as `buckets`; empty for one without a name.")
    progress: TuningProgress
    best_seconds: float | None = Field(description="Of the fastest trial so far.")
    ran_on: list[str] = Field(description="Where its trials ran, in the launchers' words.")
    result: TuningResult | None
    error: str | None
    tags: list[str]
    note: str
    archived: bool = Field(description="Left out of the dashboard's lists unless asked for.")
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None


class Tunings(Page):
    items: list[Tuning]
    total: int


class RankedStrategy(ResponseModel):
    """low_seconds, high_seconds: between which nine of ten measurements are expected, by how far
    this tuning's predictions were off; null before 19 of its strategies are measured. step_seconds,
    spread: over all measured iterations; of the confirmation alone where there was one. speedup:
    the baseline's time by this one's; over interleaved repeats where confirmed."""

    rank: int
    strategy_id: str
    words: str
    origin: str
    simulator: str
    predicted_seconds: float
    low_seconds: float | None = None
    high_seconds: float | None = None
    step_seconds: float | None
    spread: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    confirmed: bool
    settled: bool = Field(
        True, description="Whether neither its iterations nor the baseline's spread too widely."
    )
    is_ddp: bool
    is_baseline: bool
    trials: int
    recorded: bool = Field(description="Whether a trial of it recorded its timeline.")
    error: str | None


class RankedStrategies(Page):
    tuning_id: str
    byte_scale: float
    time_scale: float
    items: list[RankedStrategy]


class BucketPoint(ResponseModel):
    """torch's DDP with some size of its buckets. predicted_seconds: as it was proposed.
    low_seconds, high_seconds, step_seconds, spread, speedup: as in `RankedStrategy`."""

    strategy_id: str
    bucket_cap_mb: float | None = Field(
        description="MiB of every bucket; 25 is torch's default, whose first bucket holds 1 MiB. "
        "Null where each has its own."
    )
    bucket_cap_mb_list: list[float] | None = Field(description="MiB of each bucket.")
    is_default: bool = Field(description="Whether the sizes are torch's own.")
    buckets: int
    predicted_seconds: float
    low_seconds: float | None = None
    high_seconds: float | None = None
    step_seconds: float | None
    spread: float | None
    speedup: float | None
    confirmed: bool
    error: str | None
    code: str = Field(description="The Python that wraps a model so.")


class BucketCurve(ResponseModel):
    """Of the space `buckets`: one size for all buckets, the smallest first, then lists of sizes,
    the fastest first. Empty for tunings of other spaces."""

    tuning_id: str
    items: list[BucketPoint]


class Trial(ResponseModel):
    """low_seconds, high_seconds: as in `RankedStrategy`, around this prediction."""

    key: str
    position: int
    phase: str
    round: int
    strategy_id: str
    words: str
    origin: str
    predicted_seconds: float
    low_seconds: float | None = None
    high_seconds: float | None = None
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


class TrialDetail(Trial):
    """error_stderr: the end of what the trial's processes wrote, where it failed."""

    error_stderr: str | None


class Trials(Page):
    tuning_id: str
    items: list[Trial]


class ChangedTuning(ResponseModel):
    """A tuning that was asked to stop or to go on, and its state from then on."""

    id: str
    state: State
