"""Builds the records of a plan on one rank: buffers, process groups, and each message's `start`."""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import nn
from torch.optim import Optimizer

from autosync.codes import POWERSGD, Op, Update
from autosync.errors import InvalidInput, NotSupported
from autosync.plan import Plan
from autosync.runtime.compression.factors import (
    FactorCapture,
    factor_message,
    owner_of,
)
from autosync.runtime.compression.half import (
    dense_message,
    dense_payload_bytes,
    multiplies_by_shares,
)
from autosync.runtime.compression.powersgd import LowRankBucket, low_rank_buckets
from autosync.runtime.compression.rows import (
    TouchedRows,
    check_dense,
    row_ranges,
    rows_message,
)
from autosync.runtime.device.model_tensors import dense_strides
from autosync.runtime.device.streams import Streams
from autosync.runtime.layout.records import (
    Bucket,
    BucketUpdate,
    MessageRecord,
    Records,
    RowRange,
    VariableRecord,
    queue_names,
)
from autosync.runtime.layout.segments import bucket_segments, elements
from autosync.runtime.transport.base import chunk_of
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.updates.optimizers import (
    check_elementwise,
    class_of_group,
    looks_at_one_variable,
)
from autosync.runtime.updates.part_updates import FlatUpdate, RowUpdate, check_sparse

RAGGED_MESSAGES = {
    Op.FACTOR_ALL_GATHER: factor_message,
    **{operation: rows_message for operation in Op if operation.sparse},
}
"""Starts messages without a tensor of fixed size."""


@dataclass(frozen=True, slots=True)
class BuiltBuckets:
    """A rank's allocations before any process group is open. factored: of the buckets that
    PowerSGD packs, by index."""

    variables: list[VariableRecord]
    buckets: list[Bucket]
    factored: dict[int, LowRankBucket]


def build_buckets(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    names: tuple[str, ...],
    rank: int,
    streams: Streams,
) -> BuiltBuckets:
    """Allocate every buffer of the plan.

    names: of the plan's variables, as `model.named_parameters()` has them.

    Raises:
        InvalidInput: the plan does not cover exactly the variables of the model, or was compiled
            by an earlier version.
        NotSupported: it updates parts of variables under an optimizer that forbids it, or modules
            and optimizer do not make gradients as they travel.
    """
    variables = _variables(model, optimizer, names)
    carried = {message.bucket: message.operation for message in plan.messages}
    factored = {message.bucket for message in plan.messages if message.encoding > POWERSGD}
    buckets = [
        _row_bucket(plan, index, variables)
        if carried[index].sparse
        else _dense_bucket(plan, index, variables, row_major=index in factored)
        for index in range(len(plan.buckets))
    ]
    _check_coverage(variables)
    _find_flat(plan, buckets)
    _check_tables(buckets)
    _check_updates(optimizer, buckets)
    _find_deferred(optimizer, plan, buckets)
    _give_packers(model, optimizer, buckets, carried, plan.shares[rank], streams)
    return BuiltBuckets(variables, buckets, low_rank_buckets(plan, buckets))


def build_records(plan: Plan, built: BuiltBuckets, groups: Groups) -> Records:
    """Open every process group of the plan, and build the objects that issue messages and update.

    Raises:
        NotSupported: the runtime does not support the packing of a message.
    """
    messages = _messages(plan, built.buckets, built.factored, groups)
    for record in messages:
        if record.message.update != Update.NONE and not record.bucket.whole:
            record.bucket.update = _update(plan, record, groups.rank)
    return Records(built.variables, built.buckets, messages, plan.shares[groups.rank])


def _variables(
    model: nn.Module, optimizer: Optimizer, names: tuple[str, ...]
) -> list[VariableRecord]:
    parameters = dict(model.named_parameters())
    groups = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    }
    found = []
    for index, name in enumerate(names):
        if (parameter := parameters.get(name)) is None:
            raise InvalidInput(
                f"the plan synchronizes variable {name!r}, which the model does not have.",
                thing=f"variable {name}",
                value=name,
                remedy="Tune this model again.",
            )
        group = groups.get(id(parameter), -1)
        found.append(VariableRecord(index, name, parameter, parameter.detach(), group))
    return found


def _dense_bucket(
    plan: Plan, index: int, variables: list[VariableRecord], row_major: bool
) -> Bucket:
    """row_major: whatever the parameters' strides, as the matrices of PowerSGD are."""
    shapes = [tuple(variable.parameter.shape) for variable in variables]
    segments = bucket_segments(plan, index, shapes)
    size = segments[-1].stop
    members = [variables[i] for i in dict.fromkeys(segment.variable for segment in segments)]
    dtype = reduce(torch.promote_types, (v.parameter.dtype for v in members))
    world = plan.world_size
    padded = -(-size // world) * world
    buffer = torch.zeros(padded, dtype=dtype, device=members[0].parameter.device)
    bucket = Bucket(index, buffer, size, variables=members)
    for variable in members:
        variable.buckets.append(bucket)
    for segment in segments:
        variable = variables[segment.variable]
        whole = segment.shape == shapes[segment.variable] and dtype == variable.parameter.dtype
        strides = dense_strides(variable.parameter) if whole else None
        if not row_major:
            segment = replace(segment, strides=strides)
        view = segment.view_of(buffer)
        bucket.pieces.append((variable, segment, view))
        whole_shape = segment.shape == shapes[segment.variable]
        variable.pieces.append((None if whole_shape else segment.region, view, bucket))
        if whole and segment.strides == strides:
            variable.view = view[...]  # of its own: the script has it for a gradient
    return bucket


def _row_bucket(plan: Plan, index: int, variables: list[VariableRecord]) -> Bucket:
    """Of tables with sparse gradients: no buffer, which would be as large as they are."""
    ranges = row_ranges(plan, index, variables)
    members = list(dict.fromkeys(rows.variable for rows in ranges))
    nothing = members[0].alias.new_empty(0)
    bucket = Bucket(index, nothing, 0, ranges=ranges, variables=members)
    for variable in members:
        variable.buckets.append(bucket)
    return bucket


def _give_packers(
    model: nn.Module,
    optimizer: Optimizer,
    buckets: list[Bucket],
    carried: dict[int, Op],
    share: float,
    streams: Streams,
) -> None:
    ranges: dict[VariableRecord, list[RowRange]] = {}
    for bucket in buckets:
        for rows in bucket.ranges:
            ranges.setdefault(rows.variable, []).append(rows)
        if carried[bucket.index] == Op.FACTOR_ALL_GATHER:
            for variable in bucket.variables:
                variable.packer = FactorCapture(variable, owner_of(model, variable))
    for variable, of_variable in ranges.items():
        check_sparse(optimizer, variable)
        variable.packer = TouchedRows(variable, of_variable, share, streams)
    dense = [v for bucket in buckets for v in bucket.variables if v not in ranges]
    check_dense(model, dense)


def _check_coverage(variables: list[VariableRecord]) -> None:
    for variable in variables:
        covered = sum(place.numel() for _, place, _ in variable.pieces)
        width = variable.alias.numel() // max(1, len(variable.alias)) if variable.alias.dim() else 1
        covered += width * sum(
            rows.stop - rows.start
            for bucket in variable.buckets
            for rows in bucket.ranges
            if rows.variable is variable
        )
        if covered != elements(tuple(variable.parameter.shape)):
            raise InvalidInput(
                f"the plan covers {covered} elements of variable {variable.name!r}, which has "
                f"shape {tuple(variable.parameter.shape)}.",
                thing=f"variable {variable.name}",
                value=covered,
                remedy="This plan belongs to another model: tune this one.",
            )


def _check_tables(buckets: list[Bucket]) -> None:
    """Raises NotSupported if every rank updates some rows of a table and an owner updates others:
    torch's sparse optimizers keep one state for the whole table."""
    owned: dict[VariableRecord, bool] = {}
    for bucket in buckets:
        for rows in bucket.ranges:
            if owned.setdefault(rows.variable, bucket.values_travel) != bucket.values_travel:
                raise NotSupported(
                    f"some rows of variable {rows.variable.name!r} are gathered and others owned.",
                    thing=f"variable {rows.variable.name}",
                    remedy="Choose all_gather or parameter_server for all of its shards.",
                )


def _find_flat(plan: Plan, buckets: list[Bucket]) -> None:
    """Whole variables are those that every replica updates in all their buckets; buckets of
    anything else update flat, and so do all that share a variable with them."""
    for message in plan.messages:
        if message.update.leaves_values:
            buckets[message.bucket].values_travel = True
            buckets[message.bucket].whole = False
    grown = [bucket for bucket in buckets if not bucket.whole]
    while grown:
        bucket = grown.pop()
        bucket.whole = False
        for variable in bucket.variables:
            variable.whole = False
            grown.extend(other for other in variable.buckets if other.whole)


def _check_updates(optimizer: Optimizer, buckets: list[Bucket]) -> None:
    for bucket in buckets:
        if bucket.whole or bucket.ranges:
            continue
        for variable in bucket.variables:
            if variable.group >= 0:
                check_elementwise(class_of_group(optimizer, variable.group), variable.name)


def _find_deferred(optimizer: Optimizer, plan: Plan, buckets: list[Bucket]) -> None:
    """Messages that may continue during the next forward pass. Not those of whole variables whose
    optimizer may read several variables: it updates all at once."""
    last = {message.bucket: message for message in plan.messages}
    for index, message in last.items():
        if message.gate >= 0:
            for variable in buckets[index].variables:
                variable.deferred = not variable.whole or _updates_alone(optimizer, variable)


def _updates_alone(optimizer: Optimizer, variable: VariableRecord) -> bool:
    if variable.group < 0:
        return True
    return looks_at_one_variable(class_of_group(optimizer, variable.group))


def _messages(
    plan: Plan, buckets: list[Bucket], factored: dict[int, LowRankBucket], groups: Groups
) -> list[MessageRecord]:
    last = {message.bucket: index for index, message in enumerate(plan.messages)}
    queues = queue_names(plan, groups.streams.mode.one_order)
    records: list[MessageRecord] = []
    for index, (message, queue) in enumerate(zip(plan.messages, queues, strict=True)):
        bucket = buckets[message.bucket]
        after = records[message.after] if message.after >= 0 else None
        size_bytes: int | None = None
        if (packed := factored.get(bucket.index)) is not None:
            start = packed.start_of(plan, index, groups, queue)
            size_bytes = packed.payload_bytes(message)
        elif (make := RAGGED_MESSAGES.get(message.operation)) is not None:
            start = make(plan, index, bucket, groups, queue)
        else:
            if after is None:
                bucket.share_on_wire = multiplies_by_shares(plan, index, bucket.buffer, groups)
            start = dense_message(plan, index, bucket, groups, queue)
            size_bytes = dense_payload_bytes(message, bucket)
        is_last = last[bucket.index] == index
        records.append(
            MessageRecord(index, message, bucket, after, start, is_last, queue, size_bytes)
        )
    return records


def _update(plan: Plan, record: MessageRecord, rank: int) -> BucketUpdate | None:
    """The part of a bucket that this rank updates when the message has completed."""
    bucket, message = record.bucket, record.message
    if message.operation.sparse and message.operation.to_owner:
        return RowUpdate(bucket) if message.root == rank else None
    team = plan.team_of(message, rank)
    start, stop = 0, bucket.size
    if message.update == Update.OWNER:
        root = message.root if message.root in team else (team[0] if team else -1)
        if rank != root:
            start = stop = 0
    elif message.update == Update.SHARD and message.operation == Op.REDUCE_SCATTER:
        chunk = chunk_of(team.index(rank), len(team), bucket.size)
        start, stop = chunk.start, min(chunk.stop, bucket.size)
    return FlatUpdate(bucket, start, stop) if start < stop else None


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """names: of the variables that the rank holds, those that all ranks hold first, so that these,
    their buckets and their messages have the same numbers on every rank. holders: of each variable,
    the ranks that hold it. variables, messages: of each, its place in the whole plan.
    """

    plan: Plan
    names: tuple[str, ...]
    holders: tuple[tuple[int, ...], ...]
    variables: tuple[int, ...]
    messages: tuple[int, ...]

    @property
    def held_by_some(self) -> tuple[int, ...]:
        """Numbers of the variables that some ranks do not hold."""
        world = self.plan.world_size
        return tuple(i for i, ranks in enumerate(self.holders) if len(ranks) < world)


def held_by(plan: Plan, names: tuple[str, ...], rank: int) -> HeldPlan:
    """The variables of a plan that a rank holds: those in its messages. names: of the plan's
    variables, in its order."""
    world = plan.world_size
    ranks_of_bucket: list[set[int]] = [set() for _ in plan.buckets]
    for message in plan.messages:
        for team in plan.teams[message.teams]:
            ranks_of_bucket[message.bucket].update(team)
    if all(len(ranks) == world for ranks in ranks_of_bucket):
        everywhere = (tuple(range(world)),) * len(names)
        numbers = tuple(range(len(names)))
        return HeldPlan(plan, names, everywhere, numbers, tuple(range(len(plan.messages))))
    ranks_of_variable: list[set[int]] = [set() for _ in names]
    for bucket, pieces in enumerate(plan.buckets):
        for piece in pieces:
            ranks_of_variable[plan.shards[piece.shard].variable] |= ranks_of_bucket[bucket]
    variables = _held(ranks_of_variable, rank, world)
    buckets = _held(ranks_of_bucket, rank, world)
    variable_at = {variable: place for place, variable in enumerate(variables)}
    shards = [i for i, shard in enumerate(plan.shards) if shard.variable in variable_at]
    shard_at = {shard: place for place, shard in enumerate(shards)}
    bucket_at = {bucket: place for place, bucket in enumerate(buckets)}
    messages = tuple(i for i, each in enumerate(plan.messages) if each.bucket in bucket_at)
    own = replace(
        plan,
        shards=tuple(
            replace(plan.shards[i], variable=variable_at[plan.shards[i].variable]) for i in shards
        ),
        buckets=tuple(
            tuple(replace(piece, shard=shard_at[piece.shard]) for piece in plan.buckets[bucket])
            for bucket in buckets
        ),
        messages=tuple(
            replace(plan.messages[i], bucket=bucket_at[plan.messages[i].bucket]) for i in messages
        ),
    )
    return HeldPlan(
        own,
        tuple(names[variable] for variable in variables),
        tuple(tuple(sorted(ranks_of_variable[variable])) for variable in variables),
        tuple(variables),
        messages,
    )


def _held(ranks_of: list[set[int]], rank: int, world: int) -> list[int]:
    """The rank's own, beginning with those that all ranks hold."""
    mine = [index for index, ranks in enumerate(ranks_of) if rank in ranks]
    return sorted(mine, key=lambda index: len(ranks_of[index]) < world)
