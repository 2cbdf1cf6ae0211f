"""What runs one attached plan, put together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from autosync.runtime.device.streams import Streams
from autosync.runtime.execution.completion import Completion
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.iteration import IterationState
from autosync.runtime.execution.message_queues import MessageQueues
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.execution.parameter_storage import ParameterStorage
from autosync.runtime.execution.script_gradients import ScriptGradients
from autosync.runtime.execution.step_turns import StepTurns
from autosync.runtime.execution.waits import ScriptWaits
from autosync.runtime.layout.records import Records
from autosync.runtime.transport.agreement import Refusals
from autosync.runtime.transport.module_buffers import BufferBroadcast
from autosync.runtime.transport.value_agreement import ValueAgreement
from autosync.runtime.updates.clipping import clipping_of_several
from autosync.runtime.updates.joined_optimizers import JoinedOptimizers
from autosync.runtime.updates.optimizer_application import OptimizerApplication
from autosync.runtime.updates.unused_variables import UnusedVariables


@dataclass(frozen=True, slots=True)
class EngineParts:
    """gradients: in the script's hands. storage: of the parameters, which the script may exchange.
    values: compares those of the ranks, where they are to begin alike. turns: of several
    optimizers."""

    records: Records
    streams: Streams
    unused: UnusedVariables
    buffers: BufferBroadcast
    storage: ParameterStorage
    values: ValueAgreement | None
    iteration: IterationState
    monitor: Monitor
    application: OptimizerApplication
    completion: Completion
    queues: MessageQueues
    gradients: ScriptGradients
    turns: StepTurns | None
    waits: ScriptWaits


def put_together(
    optimizer: Optimizer,
    records: Records,
    *,
    streams: Streams,
    unused: UnusedVariables,
    buffers: BufferBroadcast,
    storage: ParameterStorage,
    values: ValueAgreement | None,
    refusals: Refusals,
    control: Any,
    sum_over_ranks: Callable[[Tensor], None],
    abort: Callable[[], None],
    max_grad_norm: float | None,
    trace: ExecutionTrace | None,
    patience_seconds: float,
) -> EngineParts:
    """control: a process group of all ranks for small exchanges. sum_over_ranks: see
    `clip_gradients`. abort: ends all process groups.
    patience_seconds: see `MessageQueue`.

    Raises:
        NotSupported: clipping was asked of optimizers that step by themselves.
    """
    iteration = IterationState(records)
    values_travel = any(bucket.values_travel for bucket in records.buckets)
    monitor = Monitor(abort, values_travel, refusals, trace)
    application = OptimizerApplication(optimizer, type(optimizer), unused, streams)
    completion = Completion(iteration, application, monitor, streams, trace)
    gradients = ScriptGradients(
        optimizer,
        records,
        iteration,
        monitor,
        streams,
        control,
        sum_over_ranks,
        max_grad_norm,
    )
    turns: StepTurns | None = None
    if isinstance(optimizer, JoinedOptimizers):
        turns = StepTurns(optimizer, records.variables, bool(gradients.pending))
        if max_grad_norm and not turns.together:
            raise clipping_of_several()
    return EngineParts(
        records,
        streams,
        unused,
        buffers,
        storage,
        values,
        iteration,
        monitor,
        application,
        completion,
        MessageQueues(completion, monitor, streams, patience_seconds),
        gradients,
        turns,
        ScriptWaits(records.variables, iteration, monitor, streams, buffers, turns),
    )
