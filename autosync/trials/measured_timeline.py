"""The measured timeline of one iteration, as a document."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT, UNLESS_NONE
from autosync.errors import InvalidInput
from autosync.runtime.execution.execution_trace import DealOperation

Phase = Literal["forward", "backward", "update", "wait"]


@dataclass(frozen=True, slots=True)
class ComputeTimes:
    """What a rank's training script did: arrays of one length, in order of time.

    phase: `wait` is where it stood still for messages; `update` is `optimizer.step()`.
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
    """What a rank dealt at the borders of placed modules: arrays of one length, in order of time.
    Every deal is a collective of all ranks, for which the script stands still (`wait`).

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
