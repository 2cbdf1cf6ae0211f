"""Graph and profile of a running job's own step: recorded with hooks, timed where it runs.

Operations are the calls of modules that own variables, each lasting until the next one begins;
what has no variables belongs to the operation before it. That is as fine as synchronization can
use: a message waits for gradients and gates forwards.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from autosync.domain import Optimizer, Profile
from autosync.errors import NotSupported
from autosync.graph import ModelGraph, Operation, Variable
from autosync.runtime.updates.flat_update import ELEMENTWISE
from autosync.torch_dtypes import DTYPE_NAMES
from autosync.trials.device_clock import seconds_since
from autosync.trials.live.live_job import LiveJob
from autosync.trials.live.step_tape import (
    Tape,
    add_unused,
    record_tape,
    refuse_odd_step,
    step_refusal,
)

ITERATIONS = 3
"""Recorded after one to warm up; their medians count."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """step_seconds: of a whole plain iteration on this rank."""

    graph: ModelGraph
    profile: Profile
    optimizer: Optimizer
    step_seconds: float


def record_job(job: LiveJob, batch_size: int | None, device_type: str) -> RecordedJob:
    """Run plain local iterations of the job's step; its state is restored.

    batch_size: of one rank; by default the leading dimension of the model's first tensor.

    Raises:
        InvalidInput: step does not run the model it is given, or not once.
        NotSupported: a parameter's type cannot be synchronized.
    """
    named = {name: p for name, p in job.model.named_parameters() if p.requires_grad}
    _refuse_types(named)
    try:
        tapes = [record_tape(job, named) for _ in range(1 + ITERATIONS)]
        optimizer = _optimizer_document(job)
    finally:
        job.before.restore()
    for tape in tapes:
        refuse_odd_step(tape, list(named), job.takes_unused)
        add_unused(tape, len(named))
    size = batch_size or tapes[-1].batch_size or 1
    graph = _graph(job.model, named, tapes[-1], size)
    profile, step_seconds = _profile(graph, tapes[1:], device_type)
    return RecordedJob(graph, profile, optimizer, step_seconds)


def _refuse_types(named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        if parameter.dtype not in DTYPE_NAMES:
            raise NotSupported(
                f"parameter {name!r} is {parameter.dtype}.",
                thing=f"parameter {name}",
                value=str(parameter.dtype),
                remedy=f"Supported: {', '.join(DTYPE_NAMES.values())}.",
            )


def _dtype(parameter: Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def _graph(
    model: nn.Module, named: dict[str, nn.Parameter], tape: Tape, batch_size: int
) -> ModelGraph:
    _adopt_orphans(tape)
    finish = _finish_order(tape)
    place = {operation: i for i, operation in enumerate(finish)}
    consumers: dict[int, list[int]] = {}
    for index, call in enumerate(tape.calls):
        for variable in call.variables:
            consumers.setdefault(variable, []).append(index)
    rows = {v: call.rows for call in tape.calls for v in call.variables}
    operations = tuple(
        Operation(
            name=f"{call.name}#{index}",
            type=call.type,
            forward_flops=0,
            backward_flops=0,
            output_bytes=call.output_bytes,
            has_batch_dimension=True,
            inputs=(index - 1,) if index else (),
            variables=call.variables,
        )
        for index, call in enumerate(tape.calls)
    )
    return ModelGraph(
        name=type(model).__name__.lower(),
        batch_size=batch_size,
        operations=operations,
        variables=tuple(
            _variable(name, p, tape.touched.get(v, 0), rows.get(v, 0))
            for v, (name, p) in enumerate(named.items())
        ),
        backward_order=tuple(finish),
        gradient_order=tuple(tape.ready),
        gradient_after=tuple(
            max(consumers[v], key=lambda operation: place[operation]) for v in range(len(named))
        ),
    )


def _adopt_orphans(tape: Tape) -> None:
    """A variable that is read without a call of its module (an attention's output projection)
    goes to the call that owns the variable whose gradient is ready next, or else before."""
    owner: dict[int, int] = {}
    for index, call in enumerate(tape.calls):
        for variable in call.variables:
            owner.setdefault(variable, index)
    order = list(tape.ready)
    for place, variable in enumerate(order):
        if variable not in owner:
            near = [*order[place + 1 :], *reversed(order[:place])]
            call = tape.calls[next(owner[v] for v in near if v in owner)]
            call.variables = (*call.variables, variable)


def _variable(name: str, parameter: nn.Parameter, touched: int, rows: int) -> Variable:
    dtype: Any = _dtype(parameter)  # refused before where it is none of `DType`
    return Variable(
        name,
        tuple(parameter.shape),
        dtype,
        sparse=touched > 0,
        touched_rows=touched,
        factor_rows=rows if parameter.dim() == 2 and not touched else 0,
    )


def _finish_order(tape: Tape) -> list[int]:
    """Operations in the order their backward ends.

    A variable's gradient is complete with its first call's backward (backward runs the calls in
    reverse); calls that complete nothing end with the call after them.
    """
    place = {variable: i for i, variable in enumerate(tape.ready)}
    owner: dict[int, int] = {}
    for index, call in enumerate(tape.calls):
        for variable in call.variables:
            owner.setdefault(variable, index)
    ends: dict[int, int] = {}
    last = -1
    for index in reversed(range(len(tape.calls))):
        own = [place[v] for v in tape.calls[index].variables if owner[v] == index]
        ends[index] = last = max(own, default=last)
    return sorted(ends, key=lambda index: (ends[index], -index))


def _profile(graph: ModelGraph, tapes: list[Tape], device_type: str) -> tuple[Profile, float]:
    """Medians over the tapes, and of the whole iteration."""
    times = [_times(graph, tape) for tape in tapes]
    profile = Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=_medians([forward for forward, _, _, _ in times]),
        backward_seconds=_medians([backward for _, backward, _, _ in times]),
        update_seconds=float(np.median([update for _, _, update, _ in times])),
        source="measured",
        note=f"median of {len(tapes)} plain iterations on rank 0 of the running job",
    )
    return profile, float(np.median([whole for _, _, _, whole in times]))


def _medians(rows: list[list[float]]) -> tuple[float, ...]:
    return tuple(float(value) for value in np.median(np.array(rows), axis=0))


def _times(graph: ModelGraph, tape: Tape) -> tuple[list[float], list[float], float, float]:
    """Forward and backward seconds of every operation, the update's, the iteration's."""
    assert tape.forward_ended is not None  # refused before
    assert tape.ended is not None
    if len(tape.calls) != len(graph.operations):
        raise step_refusal("runs other modules from one iteration to the next")
    moments = [*(call.begun for call in tape.calls), tape.forward_ended, tape.ended]
    *starts, forward_end, whole = seconds_since(tape.begun, moments)
    starts[0] = 0.0
    forward = np.maximum(np.diff([*starts, forward_end]), 0.0)
    ready = dict(zip(tape.ready, seconds_since(tape.begun, list(tape.ready.values())), strict=True))
    ends = dict.fromkeys(range(len(starts)), forward_end)
    for variable, operation in enumerate(graph.gradient_after):
        ends[operation] = max(ends[operation], ready[variable])
    backward = [0.0] * len(starts)
    now = forward_end
    for operation in graph.backward_order:
        backward[operation] = max(0.0, ends[operation] - now)
        now = max(now, ends[operation])
    updates = seconds_since(tape.begun, tape.update)
    return [float(f) for f in forward], backward, updates[-1] - updates[0], whole


def _optimizer_document(job: LiveJob) -> Optimizer:
    """After a recorded step, when the optimizer has made its state."""
    state_tensors = [
        sum(isinstance(value, Tensor) and value.shape == key.shape for value in state.values())
        for optimizer in job.optimizers
        for key, state in optimizer.state.items()
    ]
    kinds = [type(optimizer) for optimizer in job.optimizers]
    return Optimizer(
        "+".join(kind.__name__.lower() for kind in kinds),
        all(kind in ELEMENTWISE for kind in kinds),
        max(state_tensors, default=0),
    )
