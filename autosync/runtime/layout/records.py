"""The runtime's own view of a plan on one rank: variables, buckets and messages with their state.

Everything is allocated when a plan is attached; an iteration only flips flags and counts down.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from autosync.codes import Channel
from autosync.plan import Message, Plan
from autosync.runtime.device.model_tensors import Shape
from autosync.runtime.device.streams import ONE_QUEUE, DeviceEvent, Streams
from autosync.runtime.layout.segments import Segment
from autosync.runtime.transport.base import DONE, Start, Work

NodeHook = Callable[[Any, tuple[Tensor | None, ...]], None]
"""Called with nothing and (the gradient of this backward pass,): None where none came."""


class Accumulator:
    """Calls the hook for every gradient of a parameter, until removed: it is on the node of
    autograd that adds the gradient up.

    It runs when all uses of the parameter have been through backward, and behind every other hook
    of the gradient: those of the tensor, and those that `register_post_accumulate_grad_hook` takes.
    torch's DDP listens there, too. The node goes with the last reference to it, so it is held.
    """

    def __init__(self, parameter: Tensor, hook: NodeHook):
        self._parameter = parameter
        self._hook = hook
        self._node: Any = None
        self._handle: RemovableHandle | None = None
        self._hooks: OrderedDict[int, Any] = OrderedDict()
        self.follow()

    def follows(self) -> bool:
        """A parameter that was converted to another type, and back, has another node."""
        return self._node is self._current()

    def follow(self) -> None:
        """Before a forward pass, which the node becomes a part of."""
        current = self._current()
        if self._node is not current:
            self.remove()
            self._node = current
            self._listen()

    def is_last(self) -> bool:
        """Whether no hook of the node runs behind ours."""
        return self._handle is not None and next(reversed(self._hooks)) == self._handle.id

    def make_last(self) -> None:
        """From the next backward pass on."""
        self.remove()
        self._listen()

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _current(self) -> Any:
        with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
            edge = self._parameter.view_as(self._parameter).grad_fn
        assert edge is not None
        return edge.next_functions[0][0]

    def _listen(self) -> None:
        handle: RemovableHandle = self._node.register_hook(self._hook)
        hooks = handle.hooks_dict_ref()
        assert hooks is not None  # the node holds it
        self._handle, self._hooks = handle, hooks


Settings = list[dict[str, Any]]
"""The hyperparameters of every parameter group of an optimizer, without the parameters."""


class GradientPacker(Protocol):
    """Packs a gradient that travels otherwise than as a dense tensor: factors, touched rows."""

    def pack(self) -> None:
        """All of the gradient is there (or none came): make it what the messages carry."""
        ...


class BucketUpdate(Protocol):
    """Updates the part of a bucket that this rank owns or holds a shard of. The optimizer's state
    of that part lives here."""

    def run(self, optimizer: Optimizer, settings: Settings, unused: Callable[[int], bool]) -> None:
        """From reduced gradients to new values; variables that no rank used keep theirs."""
        ...

    def gradients(self) -> list[Tensor]:
        """The reduced gradients that it updates from."""
        ...

    def held_ranges(self) -> "Iterator[HeldRange]": ...

    def begin_state(
        self, optimizer: Optimizer, settings: Settings, asked: "Collection[VariableRecord]"
    ) -> None:
        """Make what an optimizer makes of a step on zeros of these variables, where there is
        no state yet. Values stay."""
        ...

    def take_state(self, optimizer: Optimizer) -> None:
        """This rank's part of what the script's optimizer holds."""
        ...


@dataclass(slots=True, eq=False)
class VariableRecord:
    """A trainable tensor of the plan.

    alias: shares the parameter's storage; carries the gradient of an update that runs while the
        script may already have replaced `parameter.grad`.
    group: index of its parameter group, -1 when the optimizer does not hold it.
    whole: every replica updates all of it, so its update needs no parts.
    deferred: the next forward pass waits for it, not `step()`.
    held_by_some: some ranks do not hold it. counts_in_norm: whether this rank includes it when the
        gradient norm is summed over ranks, as one of those that hold it does.
    pieces: (region of it, None for all of it; its place in a buffer; whose buffer that is).
    view: the only such place, where it has the parameter's type and strides: `parameter.grad` is
        this tensor then. Else None.
    target: the gradient tensor that the reduced values of a whole variable go to.
    packer: packs its gradient where no dense buffer does.
    accumulator: tells when its gradient is complete.
    has_arrived: its gradient of this iteration is complete.
    missing_sums: buckets of it that are not reduced yet.
    missing_values: updates, or arrivals of new values, until the parameter is current again.
    last_event: on a GPU, behind the last completion or update that concerns it.
    """

    index: int
    name: str
    parameter: torch.nn.Parameter
    alias: Tensor
    group: int
    buckets: list["Bucket"] = field(default_factory=list)
    whole: bool = True
    deferred: bool = False
    held_by_some: bool = False
    counts_in_norm: bool = True
    pieces: list[tuple[tuple[slice, ...] | None, Tensor, "Bucket"]] = field(default_factory=list)
    view: Tensor | None = None
    target: Tensor | None = None
    packer: GradientPacker | None = None
    accumulator: Accumulator | None = None
    size_bytes: int = field(init=False)
    has_arrived: bool = False
    missing_sums: int = 0
    missing_values: int = 0
    last_event: DeviceEvent = None

    def __post_init__(self) -> None:
        self.size_bytes = self.alias.nbytes


@dataclass(frozen=True, slots=True)
class HeldRange:
    """The optimizer's state of start:stop of a bucket's buffer (or of a table's rows), which are a
    variable's and which this rank updates.

    state: what is written into it, the optimizer reads next. parts: of one of its tensors, (origin
    in the variable, values) of each box.
    """

    variable: VariableRecord
    start: int
    stop: int
    state: dict[str, Any]
    parts: Callable[[Tensor], list[tuple[Shape, Tensor]]]


@dataclass(slots=True, eq=False)
class RowRange:
    """Rows start:stop of a table with sparse gradients.

    indices (of the whole table), values: what this rank's gradient touches. sums: the rows' sparse
    sum over all ranks, where this rank updates them. changed: indices of rows with new values.
    """

    variable: VariableRecord
    start: int
    stop: int
    indices: Tensor
    values: Tensor
    changed: Tensor
    sums: Tensor | None = None


@dataclass(slots=True, eq=False)
class Bucket:
    """A flat buffer, and the chain of messages that carries it.

    size: elements without padding. pieces: (variable, segment, its shaped view of the buffer).
    ranges: in place of pieces and buffer, the rows of tables with sparse gradients.
    whole: it holds whole variables only; otherwise its update runs over the flat buffer.
    share_on_wire: its first message multiplies by the share as it adds up; else packing does.
    update: that update, None where this rank updates nothing of it.
    values_travel: new values come by a further message, because the update is owned or sharded.
    missing_arrivals: variables whose gradient is not complete yet. missing_gradients: not packed.
    reduced: the sums that this rank updates are here. claimed: some thread runs the update.
    updated: it is applied.
    packed_seconds, updated_seconds: when, on `time.monotonic()`. packed_event, updated_event: on a
        GPU. payload_bytes: of the last message whose length is known only when it leaves.
    """

    index: int
    buffer: Tensor
    size: int
    pieces: list[tuple[VariableRecord, Segment, Tensor]] = field(default_factory=list)
    ranges: list[RowRange] = field(default_factory=list)
    variables: list[VariableRecord] = field(default_factory=list)
    whole: bool = True
    share_on_wire: bool = False
    update: BucketUpdate | None = None
    values_travel: bool = False
    missing_arrivals: int = 0
    missing_gradients: int = 0
    reduced: bool = False
    claimed: bool = False
    updated: bool = False
    packed_seconds: float = 0.0
    updated_seconds: float = 0.0
    packed_event: DeviceEvent = None
    updated_event: DeviceEvent = None
    payload_bytes: int = 0


@dataclass(slots=True, eq=False)
class MessageRecord:
    """A message of the plan as this rank executes it.

    start: starts the operation, and returns the work to wait for; None when this rank has no part.
    last: the last message of its bucket. queue: the messages among which it keeps its order.
    fixed_bytes: this rank's payload, None when `bucket.payload_bytes` says each time.
    started_seconds: issued, ended_seconds: completed, on `time.monotonic()`. started_event,
        issued_event, ended_event: on a GPU, in front of and behind what issuing asked for, and
        behind its completion.
    """

    index: int
    message: Message
    bucket: Bucket
    after: "MessageRecord | None"
    start: Start | None
    last: bool
    queue: str
    fixed_bytes: int | None = None
    done: bool = False
    started_seconds: float = 0.0
    ended_seconds: float = 0.0
    started_event: DeviceEvent = None
    issued_event: DeviceEvent = None
    ended_event: DeviceEvent = None

    @property
    def title(self) -> tuple[str, str]:
        return self.message.operation.name, f"message {self.index}"

    @property
    def waits_for_idle_link(self) -> bool:
        """Not where one queue holds everything: its order decides, for a message that is deferred
        would hold up the reductions behind it."""
        return self.message.channel == Channel.GATHER and self.queue != ONE_QUEUE

    @property
    def reduces(self) -> bool:
        """It waits neither for an idle link nor for `step()`, which each rank reaches when it
        may."""
        return not (self.waits_for_idle_link or self.message.carries_values)

    def ready(self) -> bool:
        """Gradients are packed, the message before is done and its update applied."""
        if self.after is None:
            return self.bucket.missing_gradients == 0
        return self.after.done and (self.bucket.updated or not self._waits_for_step())

    def launch(self, streams: Streams) -> Work:
        """Ask for a message that is `ready`, on the current stream."""
        streams.wait_event(self.ready_event())
        self.started_event = streams.record_event()
        self.started_seconds = time.monotonic()
        work = self.start() if self.start else DONE
        self.issued_event = streams.record_event()
        return work

    def complete(self, completed: "Callable[[MessageRecord], None]") -> None:
        """The operation has ended: what follows, does."""
        self.ended_seconds = time.monotonic()
        completed(self)

    def queued_seconds(self) -> float:
        """When a message that was issued had become `ready`; from there on it waited for those
        before it in its queue."""
        if self.after is None:
            return self.bucket.packed_seconds
        return self.bucket.updated_seconds if self._waits_for_step() else self.after.ended_seconds

    def payload_bytes(self) -> int:
        """Of this rank, encoded, when it was last issued; 0 where it has no part."""
        if self.start is None:
            return 0
        return self.bucket.payload_bytes if self.fixed_bytes is None else self.fixed_bytes

    def ready_event(self) -> DeviceEvent:
        """On a GPU, what a message that is `ready` must wait for."""
        if self.after is None:
            return self.bucket.packed_event
        return self.bucket.updated_event if self._waits_for_step() else self.after.ended_event

    def read_clock(self, streams: Streams) -> None:
        """On a GPU: when it happened, in place of when it was asked for."""
        bucket = self.bucket
        self.started_seconds = streams.seconds(self.started_event, self.started_seconds)
        self.ended_seconds = streams.seconds(self.ended_event, self.ended_seconds)
        if self.after is None:
            bucket.packed_seconds = streams.seconds(bucket.packed_event, bucket.packed_seconds)
        elif self._waits_for_step():
            bucket.updated_seconds = streams.seconds(bucket.updated_event, bucket.updated_seconds)

    def _waits_for_step(self) -> bool:
        """It is the first of its bucket to carry new values: the update must have run."""
        return self.message.carries_values and not (
            self.after is not None and self.after.message.carries_values
        )


@dataclass(frozen=True, slots=True)
class Records:
    """Of one plan, each list in the plan's order. share: this rank's part of the average.
    model_is_divided: ranks divide the model between them, so that some rank may not hold all
    variables."""

    variables: list[VariableRecord]
    buckets: list[Bucket]
    messages: list[MessageRecord]
    share: float
    model_is_divided: bool = False


# --- the order in which a rank issues messages
#
# A function of the plan alone, so that every rank computes the same. Messages of a queue keep their
# order. In host memory each channel is a queue. NCCL needs one order for everything: a collective
# occupies its GPU until its peers have joined, so two ranks that start two of them in different
# orders may wait for each other for ever, whatever communicators the two are on. So there all
# messages of fixed size share one queue.

VALUES = "-values"
"""End of the names of queues whose messages wait for `step()`."""


def queue_names(plan: Plan, one_order: bool = False) -> list[str]:
    """Of each message, the queue that it keeps its order in.

    Those that wait for `step()` queue by themselves. Clipping, or a backward pass that returns
    complete gradients, must not wait for a reduction that stands behind a message which waits
    for `step()`. In the one queue they stand behind all reductions instead.
    """
    names = []
    for message in plan.messages:
        if one_order and not message.operation.ragged:
            names.append(ONE_QUEUE)
        else:
            names.append(message.channel.name + (VALUES if message.carries_values else ""))
    return names


def issue_order(plan: Plan) -> list[int]:
    """Message indices in the total order of a plan; every queue issues its own in this order.

    First all that do not wait for `step()`, then those that do, each in the plan's order. None
    waits for one behind it: a message's predecessor in its chain has a smaller index, and waits
    for `step()` only if it does.
    """
    messages = plan.messages
    return sorted(range(len(messages)), key=lambda index: (messages[index].carries_values, index))


def place_of_buffers(plan: Plan) -> int:
    """Where the broadcast of module buffers, which a forward pass waits for, stands in that order:
    in front of what waits for `step()`; if messages may continue during the next forward pass, in
    front of the first that waits for the last gradient, since buffers are final soon after it.
    """
    ready = [message.ready for message in plan.messages if not message.carries_values]
    return ready.index(max(ready)) if plan.overlap_forward and ready else len(ready)
