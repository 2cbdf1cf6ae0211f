"""All-reduces that have s iterations to arrive (pipelined all-reduce, Pipe-SGD, Li et al. 2018).

The sums of iteration t are applied at the step of iteration t + s. One buffer an iteration that may
be under way, s + 1 in all; a bucket leaves when it is full and those before it in the plan's order
have left, which is the same order on every rank.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable as Autograd
from torch.optim import Optimizer

from autosync.errors import AutosyncError, InvalidInput, NotSupported
from autosync.extensions.staleness.document import iterations_of
from autosync.extensions.staleness.lagging import LaggingAttachment, LaggingJob
from autosync.plan import Plan
from autosync.runtime.execution.model_checks import (
    inside_another,
    ready_twice,
    unknown_end,
    within_backward,
)
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.pending import tensors_in
from autosync.runtime.hooks.torch_compile import opaque
from autosync.runtime.layout.segments import bucket_segments

KEY = "stale_gradients"
"""Entry of an optimizer's state_dict, beside torch's own two, which torch's optimizers ignore: for
each iteration whose gradients no step has applied, oldest first, the sums of all variables."""

SUMS = "the sum of gradients that are to be applied later"


@dataclass(slots=True)
class GradientSlot:
    """The gradients of one iteration. buffers: by bucket. places: of each variable, its regions and
    where they lie in the buffers. works: what is under way. iteration: counted from 0."""

    buffers: list[Tensor]
    places: list[list[tuple[tuple[slice, ...], Tensor]]]
    works: list[Any] = field(default_factory=list)
    iteration: int = -1


class GradientPipeline:
    """names, parameters: of the plan's variables, in its order. group: of all ranks. share: this
    rank's part of the average. monitor: ends all waiting where a peer has stopped."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        parameters: Sequence[Tensor],
        group: Any,
        share: float,
        monitor: Monitor,
    ):
        self.staleness = iterations_of(plan)
        self._names = names
        self._parameters = parameters
        self._group = group
        self._share = share
        self._monitor = monitor
        self._order = [message.bucket for message in plan.messages]
        self._slots = [_slot(plan, parameters) for _ in range(self.staleness + 1)]
        shapes = [tuple(parameter.shape) for parameter in parameters]
        members = [
            {segment.variable for segment in bucket_segments(plan, bucket, shapes)}
            for bucket in range(len(plan.buckets))
        ]
        self._counts = [len(one) for one in members]
        self._buckets_of = [
            [bucket for bucket, held in enumerate(members) if variable in held]
            for variable in range(len(parameters))
        ]
        self._in_flight: deque[GradientSlot] = deque()
        self._free = deque(self._slots)
        self._filling: GradientSlot | None = None
        self._missing: list[int] = []
        self._absent: set[int] = set()
        self._unpacked: set[int] = set()
        self._last: int | None = None
        self._next = 0
        self._iterations = 0

    @property
    def filling(self) -> bool:
        """Whether a backward pass is under way."""
        return self._filling is not None

    def begin(self) -> None:
        """With the first gradient of a backward pass."""
        self._filling = self._free.popleft()
        self._filling.iteration = self._iterations
        self._missing = list(self._counts)
        self._absent = set(range(len(self._parameters)))
        self._unpacked = set(self._absent)
        self._last = None
        self._next = 0

    def arrive(self, variable: int) -> None:
        """Its gradient is complete. It is packed when the next one arrives: hooks of the script's
        have run then.

        Raises:
            NotSupported: it has been complete in this backward pass before.
        """
        if variable not in self._absent:
            raise ready_twice(self._names[variable])
        self._absent.discard(variable)
        before, self._last = self._last, variable
        if before is not None:
            self._pack(before)

    def _pack(self, variable: int) -> None:
        """No gradient counts as zero."""
        slot, gradient = self._filling, self._parameters[variable].grad
        assert slot is not None
        for region, place in slot.places[variable]:
            if gradient is None:
                place.zero_()
            else:
                torch.mul(gradient[region], self._share, out=place)
        self._unpacked.discard(variable)
        for bucket in self._buckets_of[variable]:
            self._missing[bucket] -= 1
        self._issue(slot)

    def _issue(self, slot: GradientSlot) -> None:
        while self._next < len(self._order) and self._missing[self._order[self._next]] == 0:
            buffer = slot.buffers[self._order[self._next]]
            with self._monitor.exchange(SUMS):
                slot.works.append(self._group.allreduce([buffer], dist.AllreduceOptions()))
            self._next += 1

    def end(self) -> None:
        """Of a backward pass: what it left out counts as zero, and everything is under way."""
        for variable in sorted(self._unpacked):
            self._pack(variable)
        assert self._filling is not None
        self._in_flight.append(self._filling)
        self._filling = None
        self._iterations += 1

    def due(self) -> list[Tensor] | None:
        """The sums by variable that are to be applied now, once they are here; None where none
        are old enough. They hold until the next backward pass."""
        return self._oldest() if len(self._in_flight) > self.staleness else None

    def rest(self) -> list[Tensor] | None:
        """The oldest sums that no step has had, due or not; None where all have been applied."""
        return self._oldest() if self._in_flight else None

    def _oldest(self) -> list[Tensor]:
        slot = self._in_flight.popleft()
        self._land(slot)
        self._free.append(slot)
        return self._sums(slot)

    def saved(self) -> list[list[Tensor]]:
        """Copies of the sums that no step has had, oldest first. The same on every rank."""
        for slot in self._in_flight:
            self._land(slot)
        return [[one.clone() for one in self._sums(slot)] for slot in self._in_flight]

    def load(self, saved: Sequence[Sequence[Tensor]]) -> None:
        """Go on from `saved`, in place of what is under way.

        Raises:
            InvalidInput: it holds more iterations than this plan lets lag, or other variables.
        """
        shapes = [tuple(parameter.shape) for parameter in self._parameters]
        for sums in saved:
            if [tuple(one.shape) for one in sums] != shapes or len(saved) > self.staleness:
                raise InvalidInput(
                    f"the checkpoint holds the gradients of {len(saved)} iterations that no step "
                    f"had applied; this plan keeps {self.staleness}, of {len(shapes)} variables.",
                    thing=f"state_dict[{KEY!r}]",
                    value=len(saved),
                    remedy="Load it under a plan of the same staleness and model.",
                )
        self.wait()
        self._free.extend(self._in_flight)
        self._in_flight.clear()
        for sums in saved:
            slot = self._free.popleft()
            slot.works.clear()
            for places, total in zip(slot.places, sums, strict=True):
                for region, place in places:
                    place.copy_(total[region])
            self._in_flight.append(slot)

    def wait(self) -> None:
        """Until nothing is under way."""
        for slot in self._in_flight:
            self._land(slot)

    def _land(self, slot: GradientSlot) -> None:
        with self._monitor.exchange(SUMS):
            while slot.works:
                self._monitor.wait_for_work(slot.works[0])
                slot.works.pop(0)

    def _sums(self, slot: GradientSlot) -> list[Tensor]:
        found = []
        for parameter, places in zip(self._parameters, slot.places, strict=True):
            if (
                len(places) == 1
                and places[0][1].dtype == parameter.dtype
                and parameter.is_contiguous()
            ):
                found.append(places[0][1].view(parameter.shape))
                continue
            total = torch.empty_like(parameter, requires_grad=False)
            for region, place in places:
                total[region] = place.to(total.dtype)
            found.append(total)
        return found


def _slot(plan: Plan, parameters: Sequence[Tensor]) -> GradientSlot:
    shapes = [tuple(parameter.shape) for parameter in parameters]
    slot = GradientSlot([], [[] for _ in parameters])
    for bucket in range(len(plan.buckets)):
        segments = bucket_segments(plan, bucket, shapes)
        dtypes = [parameters[segment.variable].dtype for segment in segments]
        buffer = torch.zeros(segments[-1].stop, dtype=reduce(torch.promote_types, dtypes))
        for segment in segments:
            place = buffer[segment.start : segment.stop].view(segment.shape)
            slot.places[segment.variable].append((segment.region, place))
        slot.buffers.append(buffer)
    return slot


class PipelinedAttachment(LaggingAttachment):
    """When `backward()` returns, `parameter.grad` is the average gradient of the iteration s
    before, or None in the first s iterations. So whatever the script does to gradients before
    `step()` is done to what is applied.

    synchronizing: False inside `no_sync`. end_is_expected: its backward pass calls back.
    """

    def __init__(self, job: LaggingJob) -> None:
        super().__init__(job)
        refusals = job.meeting.refusals
        self.monitor = Monitor(job.groups.close, state_is_split=False, refusals=refusals)
        self.pipeline = GradientPipeline(
            job.plan, job.names, job.parameters, job.gradients, job.share, self.monitor
        )
        self.synchronizing = True
        self.stepped = True
        self.end_is_expected = False

    def install(self) -> None:
        super().install()
        model, optimizer = self.model, self.given
        for variable, parameter in enumerate(self.job.parameters):
            hook = self._gradient_hook(variable)
            self.handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self.handles += [
            optimizer.register_state_dict_post_hook(self.save),
            optimizer.register_load_state_dict_pre_hook(self.load),
            model.register_forward_hook(opaque(lambda *given: self.end_forward(*given))),
        ]
        for module in model.modules():
            if module is not model and next(module.buffers(recurse=False), None) is not None:
                before = opaque(lambda *_: self._before_buffers())
                self.handles.append(module.register_forward_pre_hook(before))

    @property
    def failure(self) -> AutosyncError | None:
        return self.monitor.failure

    def reporting(self, call: str) -> AbstractContextManager[None]:
        return self.monitor.reporting(call)

    def stop(self, error: AutosyncError) -> None:
        self.monitor.stop(error)

    def flush(self) -> None:
        """What no step has applied is kept."""
        self.monitor.check()
        self.pipeline.wait()
        self._finish_buffers()

    def before_copy(self) -> None:
        self.flush()

    def detach(self, keep_state: bool = True) -> None:
        """Apply what is left, oldest first, so that no gradient is lost; then leave model and
        optimizer as they were. A collective; after a failure nothing is waited for, and what is
        left is lost. keep_state: False drops it in any case."""
        sound = self.monitor.failure is None
        if sound:
            self.flush()
            with suppress(RuntimeError):  # nothing is in flight here: a peer may go first
                self._barrier()
        self.unhook()
        while sound and keep_state and (sums := self.pipeline.rest()) is not None:
            self._give(sums)
            self.given.step()
        for parameter in self.job.parameters:
            parameter.grad = None
        self.job.groups.close()

    def at_exit(self) -> None:
        """A message that outlives the interpreter would abort the process."""
        with suppress(Exception):  # a peer may have gone
            self.flush()
        self.job.groups.close()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add to the local gradients only."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before

    def _gradient_hook(self, variable: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if not self.synchronizing:
                return
            if not self.pipeline.filling:
                self._begin()
            with self.monitor.refusing():
                self.pipeline.arrive(variable)

        return hook

    def _begin(self) -> None:
        self.monitor.check()
        with self.monitor.refusing():
            if not self.end_is_expected and inside_another():
                raise unknown_end()
        with self.monitor.reporting("backward()"):
            self._check_stepped()
        self.pipeline.begin()
        self.expect_end()

    def _check_stepped(self) -> None:
        if not self.stepped:
            raise NotSupported(
                "two backward passes were synchronized before one optimizer.step().",
                thing="backward",
                remedy="Run all but the last of them inside `with model.no_sync():`.",
            )

    def expect_end(self, *_: Any) -> None:
        """Be called back at the end of the backward pass that is running. The model's outputs ask
        first: the inner backward of a reentrant checkpoint would end too early."""
        if self.synchronizing and not self.end_is_expected:
            self.end_is_expected = True
            Autograd._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self.end_is_expected = False
        if not self.pipeline.filling:  # it reached no variable
            return
        with self.monitor.refusing():
            self.pipeline.end()
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self.job.buffers.start(self.monitor.wait_for_work)
        self.stepped = False
        self._give(self.pipeline.due())

    def _give(self, sums: list[Tensor] | None) -> None:
        for variable, parameter in enumerate(self.job.parameters):
            parameter.grad = None if sums is None else sums[variable]
        if sums is not None and self.job.max_grad_norm:
            nn.utils.clip_grad_norm_(self.job.parameters, self.job.max_grad_norm)

    def before_step(self, *_: Any) -> None:
        self.monitor.check()

    def after_step(self, *_: Any) -> None:
        self.stepped = True
        self._finish_buffers()

    def save(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, KEY: self.pipeline.saved()}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.pipeline.load(state.get(KEY, []))
        return {name: value for name, value in state.items() if name != KEY}

    def begin_forward(self) -> None:
        self.monitor.check()
        if not within_backward():
            self.end_is_expected = False
            self._finish_buffers()

    def _before_buffers(self) -> None:
        """A module is about to read its buffers."""
        if not within_backward():
            self._finish_buffers()

    def end_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """The outputs of a training forward pass ask for the end of their backward pass."""
        trains = torch.is_grad_enabled() and self.model.training and self.synchronizing
        if module is not self.model or not trains or within_backward():
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self.expect_end)

    def _finish_buffers(self) -> None:
        with self.monitor.refusing(), self.monitor.exchange("the broadcast of module buffers"):
            self.job.buffers.finish(self.monitor.wait_for_work)
