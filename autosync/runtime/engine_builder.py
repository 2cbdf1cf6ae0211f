"""Builds the engine of one plan on one rank, with all that it works with."""

from dataclasses import replace

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from autosync.plan import Plan
from autosync.runtime.device.streams import ONE_QUEUE
from autosync.runtime.execution.engine import Engine
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.model_checks import ParameterStorage
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.hooks.optimizer_coverage import renormalized_tables
from autosync.runtime.records_builder import BuiltBuckets, HeldPlan, build_records
from autosync.runtime.transport.agreement import CollectiveCalls, RankMeeting
from autosync.runtime.transport.module_buffers import BufferBroadcast, OrderedBufferBroadcast
from autosync.runtime.transport.process_groups import Groups, small_sum
from autosync.runtime.transport.value_agreement import ValueAgreement
from autosync.runtime.updates.clipping import clipping_of_several
from autosync.runtime.updates.optimizer_state import ShardedOptimizerState
from autosync.runtime.updates.unused_variables import UnusedVariables


def build_engine(
    model: nn.Module,
    optimizer: Optimizer,
    held: HeldPlan,
    built: BuiltBuckets,
    group: dist.ProcessGroup,
    groups: Groups,
    meeting: RankMeeting,
    max_grad_norm: float | None,
    trace: ExecutionTrace | None,
    *,
    alike: bool,
) -> Engine:
    """Open what the plan needs. Every rank opens the same groups in the same order. alike: whether
    all ranks have begun with the same values.

    Raises:
        NotSupported: max_grad_norm with optimizers that step one by one.
    """
    everyone = tuple(range(group.size()))
    if groups.streams.mode.one_order:
        in_order = groups.get(ONE_QUEUE, everyone)
        buffers: BufferBroadcast = OrderedBufferBroadcast(
            model, in_order, group.rank(), groups.streams
        )
    else:
        for_buffers = groups.get("buffers", everyone, "gloo")
        buffers = BufferBroadcast(model, for_buffers, group.rank(), groups.streams)
    records = build_records(held.plan, built, groups)
    records = replace(records, model_is_divided=_is_divided(held.plan))
    for index in held.held_by_some:
        records.variables[index].held_by_some = True
        records.variables[index].counts_in_norm = held.holders[index][0] == group.rank()
    calls = None
    if not all(bucket.whole for bucket in records.buckets):
        calls = CollectiveCalls(groups.get("calls", everyone, "gloo"), meeting.store)
    patience_seconds = groups.timeout.total_seconds()
    values: ValueAgreement | None = None
    if alike:
        common = _common_parameters(model, held)
        values = ValueAgreement(common, meeting.store, group.rank(), group.size(), patience_seconds)
    values_travel = any(bucket.values_travel for bucket in records.buckets)
    engine = Engine(
        optimizer,
        held.plan,
        records,
        ShardedOptimizerState(optimizer, records, group, meeting.control, calls),
        control=meeting.control,
        streams=groups.streams,
        monitor=Monitor(groups.close, values_travel, meeting.refusals, trace),
        storage=ParameterStorage(model, records.variables),
        buffers=buffers,
        values=values,
        unused=UnusedVariables(
            meeting.store, group.rank(), group.size(), held.variables, held.holders
        ),
        sum_over_ranks=small_sum(groups, ONE_QUEUE, everyone, meeting.control),
        max_grad_norm=max_grad_norm,
        patience_seconds=patience_seconds,
    )
    if max_grad_norm and not engine.optimizer_step.together:
        raise clipping_of_several()
    return engine


def _common_parameters(model: nn.Module, held: HeldPlan) -> dict[str, nn.Parameter]:
    """That every rank holds, with the same values: not the tables that each rank's forward passes
    renormalize. Of a model that ranks divide the plan's only, since a module's frozen ones go with
    it."""
    differ = {id(table.weight) for table in renormalized_tables(model).values()}
    named = {name: p for name, p in model.named_parameters() if id(p) not in differ}
    if not _is_divided(held.plan):
        return named
    apart = {held.names[index] for index in held.held_by_some}
    everywhere = set(held.names) - apart
    return {name: p for name, p in named.items() if name in everywhere}


def _is_divided(plan: Plan) -> bool:
    return any(entry.divides_model for entry in plan.extensions)
