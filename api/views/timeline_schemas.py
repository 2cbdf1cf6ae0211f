"""One strategy's iteration, predicted and measured, as the service answers it."""

from typing import Literal

from autosync.api.views.schemas import ResponseModel
from autosync.simulator.timeline.iteration_trace import ComputeInterval, DealInterval
from autosync.simulator.timeline.trace_comparison import Difference


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


class TimelineIteration(ResponseModel):
    """From the forward start of the slowest rank over one iteration to the end of the next forward
    pass; seconds are the domain's and count from that start. Of an update of several batches, the
    last one. messages: of this iteration; null where none were recorded. deals: at the borders of
    placed modules, as recorded; predicted, they are part of compute."""

    step_seconds: float
    compute: list[ComputeInterval]
    messages: list[TimelineMessage] | None
    deals: list[DealInterval]


class Timeline(ResponseModel):
    """One strategy's iteration as the timeline simulator predicts it, and as a trial recorded it.

    measured: null where no trial recorded it. clock: `shared` where all ranks read one machine's
    clock; `by host` where times of different hosts compare only as far as their latest forward
    starts coincide. differences: where the two differ most first.
    binding: what shortens the predicted iteration most where it is faster; empty in answers of
    services that did not say it.
    predicted_peak_bytes, device_memory_bytes: of each rank; the latter null where nobody states it.
    """

    tuning_id: str
    strategy_id: str
    words: str
    is_ddp: bool
    trial: str | None
    clock: Literal["shared", "by host"] | None
    predicted: TimelineIteration
    measured: TimelineIteration | None
    binding: str = ""
    differences: list[Difference]
    predicted_peak_bytes: list[int]
    device_memory_bytes: list[int | None]
