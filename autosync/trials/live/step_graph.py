"""Graph and profile of a running job's own step: recorded with hooks, timed where it runs.

Operations are the calls of modules that own variables, each lasting until the next one begins;
what has no variables belongs to the operation before it. That is as fine as synchronization can
use: a message waits for gradients and gates forwards. A model whose forward pass depends on its
input runs other modules from one batch to the next: iterations are united as the importer unites
several example inputs.
"""

import gc
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from autosync.cluster import Cluster
from autosync.device_clock import seconds_since
from autosync.domain import Domain, Optimizer, Profile
from autosync.errors import NotSupported
from autosync.extensions.registry import Entries, to_save_memory, unsteady_passes
from autosync.extensions.seams import attach_beside
from autosync.graph import ModelGraph, Operation, Variable
from autosync.importing.several_examples import RecordedGraph, united_graph
from autosync.importing.training_step import warn_of_eval_mode
from autosync.runtime.updates.optimizers import ELEMENTWISE
from autosync.runtime.updates.part_updates import SPARSE_OPTIMIZERS
from autosync.torch_dtypes import DTYPE_NAMES
from autosync.trials.contract import LACKS_MEMORY
from autosync.trials.failures import error_kind
from autosync.trials.live.job import LiveJob
from autosync.trials.live.job_cluster import device_memory_gb
from autosync.trials.live.recorded_step import (
    Tape,
    add_unused,
    assign_uncalled_variables,
    finish_order,
    last_consumers,
    operation_names,
    record_tape,
    refuse_incomplete_step,
    step_refusal,
)

WARM_UP, ITERATIONS = 1, 3
"""Iterations before the recorded ones, and the fewest of those; where the job has several batches,
each of them is recorded once."""

PLAIN = "plain iterations"
"""How iterations were recorded, in words; else see `ExtensionDocument.to_save_memory`."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """step_seconds: of a whole plain iteration on this rank. accumulate: batches of it; graph and
    profile are of one."""

    graph: ModelGraph
    profile: Profile
    optimizer: Optimizer
    step_seconds: float
    accumulate: int

    def domain_on(self, cluster: Cluster) -> Domain:
        return Domain(self.graph, cluster, self.profile, self.optimizer, self.accumulate)


def record_job(job: LiveJob, batch_size: int | None, device_type: str) -> RecordedJob:
    """Run plain local iterations of the job's step; its state is restored, and `job.accumulate` is
    known. Where they run other
    modules, the graph has all of them, with the share of the iterations that ran each. Where the
    device has no room for a plain iteration, extensions that save memory are tried in turn.

    batch_size: of one rank; by default the leading dimension of the model's first tensor.

    Warns where the step trains a model in eval mode.

    Raises:
        InvalidInput: step does not run the model it is given, or adds up the gradients of more
            batches in some iterations than in others.
        NotSupported: a parameter's type cannot be synchronized.
    """
    named = {name: p for name, p in job.model.named_parameters() if p.requires_grad}
    _refuse_types(named)
    tapes, optimizer, how = _recorded_with_room(job, named)
    for tape in tapes:
        refuse_incomplete_step(tape, list(named), job.takes_unused)
        add_unused(tape, len(named))
    batches = sorted({tape.batches for tape in tapes})
    if len(batches) > 1:
        raise step_refusal(
            f"has {batches[0]} batches in some iterations and {batches[-1]} in others",
            "Add up the gradients of as many batches in every iteration.",
        )
    size = batch_size or tapes[-1].batch_size or 1
    graph = _graph(job.model, named, tapes, size)
    profile, step_seconds = _profile(graph, tapes, device_type, how)
    job.accumulate = batches[0]
    return RecordedJob(graph, profile, optimizer, step_seconds, job.accumulate)


def _recorded(
    job: LiveJob, named: dict[str, nn.Parameter], warm_up: int
) -> tuple[list[Tape], Optimizer]:
    for _ in range(warm_up):
        record_tape(job, named, 0)
    iterations = max(ITERATIONS, len(job.batches))
    tapes = [record_tape(job, named, iteration) for iteration in range(iterations)]
    warn_of_eval_mode(job.model)  # the step may have set the mode itself
    return tapes, _optimizer_document(job)


def _recorded_with_room(
    job: LiveJob, named: dict[str, nn.Parameter]
) -> tuple[list[Tape], Optimizer, str]:
    """And how they ran: as they are, else with what saves more and more of the device's memory,
    where a limit of it is known."""
    ways: list[tuple[str, Entries]] = [(PLAIN, ())]
    memory_gb = device_memory_gb(job.device)
    if memory_gb is not None:
        ways += [(how, (entry,)) for how, entry in to_save_memory(memory_gb * 1e9)]
    *others, (last, most) = ways
    for how, entries in others:
        try:
            return *_recorded_with(job, named, entries), how
        except Exception as error:  # of any type: the step is the user's own
            if error_kind(error) not in LACKS_MEMORY:
                raise
        gc.collect()  # what the iteration that failed has left
        if job.device.type == "cuda":
            torch.cuda.empty_cache()
    return *_recorded_with(job, named, most), last


def _recorded_with(
    job: LiveJob, named: dict[str, nn.Parameter], entries: Entries
) -> tuple[list[Tape], Optimizer]:
    beside = attach_beside(entries, job.model, job.optimizers)
    try:
        return _recorded(job, named, WARM_UP + unsteady_passes(entries))
    finally:
        for each in beside:
            each.remove(keep_state=False)
        job.before.restore()


def _refuse_types(named: dict[str, nn.Parameter]) -> None:
    for name, parameter in named.items():
        if parameter.dtype not in DTYPE_NAMES:
            raise NotSupported(
                f"parameter {name!r} is {parameter.dtype}.",
                thing=f"parameter {name}",
                value=str(parameter.dtype),
                remedy=f"Supported: {', '.join(DTYPE_NAMES.values())}.",
            )


def _graph(
    model: nn.Module, named: dict[str, nn.Parameter], tapes: list[Tape], batch_size: int
) -> ModelGraph:
    """tapes: with all variables in `ready`, those without a gradient last (`add_unused`)."""
    assign_uncalled_variables(tapes)
    name = type(model).__name__.lower()
    graph = united_graph([_tape_graph(named, tape, name, batch_size) for tape in tapes], name)
    shares = {each.frequency for each in graph.operations} | {v.frequency for v in graph.variables}
    examples = 1 if shares == {1.0} else len(tapes)
    return replace(graph, examples=examples, uncalled=_uncalled(named, tapes))


def _tape_graph(
    named: dict[str, nn.Parameter], tape: Tape, name: str, batch_size: int
) -> RecordedGraph:
    order = finish_order(tape)
    after = last_consumers(tape.calls, order)
    rows = {variable: call.rows for call in tape.calls for variable in call.variables}
    operations = tuple(
        Operation(
            name=operation,
            type=call.type,
            forward_flops=0,
            backward_flops=0,
            output_bytes=call.output_bytes,
            has_batch_dimension=True,
            inputs=(index - 1,) if index else (),
            variables=call.variables,
        )
        for index, (operation, call) in enumerate(
            zip(operation_names(tape), tape.calls, strict=True)
        )
    )
    graph = ModelGraph(
        name=name,
        batch_size=batch_size,
        operations=operations,
        variables=tuple(
            _variable(key, parameter, _touched(tape, v), rows.get(v, 0))
            for v, (key, parameter) in enumerate(named.items())
        ),
        backward_order=tuple(order),
        gradient_order=tuple(tape.ready),
        gradient_after=tuple(after.get(v, order[-1]) for v in range(len(named))),
    )
    unreached = frozenset(key for v, key in enumerate(named) if v not in tape.gradients)
    return RecordedGraph(graph, unreached)


def _uncalled(named: Iterable[str], tapes: Sequence[Tape]) -> tuple[str, ...]:
    """Modules around these variables that no iteration has called."""
    paths = (name.split(".")[:-1] for name in named)
    around = dict.fromkeys(".".join(path[: i + 1]) for path in paths for i in range(len(path)))
    called = {name for tape in tapes for name in tape.called}
    return tuple(name for name in around if name not in called)


def _touched(tape: Tape, variable: int) -> int:
    """Rows that a batch touches: of a sparse gradient one at least, though it may have none where
    all lookups are of padding; 0 of a dense one."""
    rows = tape.touched.get(variable)
    return 0 if rows is None else max(1, -(-rows // tape.batches))


def _variable(name: str, parameter: nn.Parameter, touched: int, rows: int) -> Variable:
    return Variable(
        name,
        tuple(parameter.shape),
        DTYPE_NAMES[parameter.dtype],
        sparse=touched > 0,
        touched_rows=touched,
        factor_rows=rows if parameter.dim() == 2 and not touched else 0,
    )


def _profile(
    graph: ModelGraph, tapes: list[Tape], device_type: str, how: str
) -> tuple[Profile, float]:
    """Medians over the tapes that have an operation, times its frequency; and the whole iteration,
    of other lengths where operations are left out: the mean, else the median.

    how: the iterations ran, in words.
    """
    times = [_times(tape) for tape in tapes]
    always = all(operation.frequency == 1.0 for operation in graph.operations)
    whole = [each.whole for each in times]
    profile = Profile(
        device=device_type,
        batch_size=graph.batch_size,
        forward_seconds=_expected(graph, [each.forward for each in times]),
        backward_seconds=_expected(graph, [each.backward for each in times]),
        update_seconds=float(np.median([each.update for each in times])),
        source="measured",
        note=f"median of {len(tapes)} {how} on rank 0 of the running job",
    )
    return profile, float(np.median(whole) if always else np.mean(whole))


def _expected(graph: ModelGraph, measured: list[dict[str, float]]) -> tuple[float, ...]:
    """Seconds of each operation in an iteration: 0 in those that leave it out. measured: of every
    tape, by the operation's name."""
    found = []
    for operation in graph.operations:
        name = re.sub(r" \(\d+\)$", "", operation.name)  # as in a tape: see `united_graph`
        ran = [seconds[name] for seconds in measured if name in seconds]
        found.append(operation.frequency * float(np.median(ran)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _TapeTimes:
    """Seconds of every call of the last batch, of the update and of the iteration."""

    forward: dict[str, float]
    backward: dict[str, float]
    update: float
    whole: float


def _times(tape: Tape) -> _TapeTimes:
    assert tape.forward_ended is not None  # refused before
    assert tape.ended is not None
    moments = [*(call.begun for call in tape.calls), tape.forward_ended, tape.ended]
    *starts, forward_end, ended = seconds_since(tape.begun, moments)
    (before,) = seconds_since(tape.step_begun, [tape.begun])
    starts[0] = 0.0
    forward = np.maximum(np.diff([*starts, forward_end]), 0.0)
    ready = dict(zip(tape.ready, seconds_since(tape.begun, list(tape.ready.values())), strict=True))
    order = finish_order(tape)
    ends = dict.fromkeys(range(len(starts)), forward_end)
    for variable, operation in last_consumers(tape.calls, order).items():
        ends[operation] = max(ends[operation], ready[variable])
    backward = [0.0] * len(starts)
    now = forward_end
    for operation in order:
        backward[operation] = max(0.0, ends[operation] - now)
        now = max(now, ends[operation])
    updates = seconds_since(tape.begun, tape.update)
    names = operation_names(tape)
    return _TapeTimes(
        dict(zip(names, map(float, forward), strict=True)),
        dict(zip(names, backward, strict=True)),
        updates[-1] - updates[0],
        before + ended,
    )


def _optimizer_document(job: LiveJob) -> Optimizer:
    """After a recorded step, when the optimizer has made its state. SparseAdam has tables alone, of
    which an owner may update some rows."""
    state_tensors = [
        sum(isinstance(value, Tensor) and value.shape == key.shape for value in state.values())
        for optimizer in job.optimizers
        for key, state in optimizer.state.items()
    ]
    kinds = [type(optimizer) for optimizer in job.optimizers]
    return Optimizer(
        "+".join(kind.__name__.lower() for kind in kinds),
        all(kind in ELEMENTWISE or kind in SPARSE_OPTIMIZERS for kind in kinds),
        max(state_tensors, default=0),
    )
