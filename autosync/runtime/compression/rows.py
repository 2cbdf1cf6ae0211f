"""Sparse gradients (embeddings): touched rows travel with their indices, and only they.

Which rows, and how many, differs between ranks and iterations. Row numbers on the wire are those
of the whole table.
"""

from threading import Lock

import torch
from torch import Tensor, nn

from autosync.errors import NotSupported
from autosync.plan import Plan
from autosync.runtime.compression.half import HALF
from autosync.runtime.device.streams import DeviceEvent, Streams
from autosync.runtime.layout.records import Bucket, RowRange, VariableRecord
from autosync.runtime.transport.base import Start, Then, Work
from autosync.runtime.transport.gloo import sum_type
from autosync.runtime.transport.process_groups import Groups
from autosync.runtime.transport.ragged import ragged_operation
from autosync.runtime.transport.tensor_exchange import PackedTensors

Rows = tuple[Tensor, Tensor]
"""Indices i64[n] and values (n, ...) of touched rows."""


def row_ranges(plan: Plan, bucket: int, variables: list[VariableRecord]) -> list[RowRange]:
    """The rows that a bucket of sparse messages carries, whole shards of tables.

    Raises:
        NotSupported: it cuts a table otherwise than by rows.
    """
    found = []
    for piece in plan.buckets[bucket]:
        shard = plan.shards[piece.shard]
        variable = variables[shard.variable]
        rows = len(variable.alias)
        width = variable.alias.numel() // rows
        whole = shard.axis < 0 and shard.length == rows * width
        start, length = (0, rows) if whole else (shard.offset, shard.length)
        if not (whole or shard.axis == 0) or (piece.start, piece.stop) != (0, length * width):
            raise NotSupported(
                f"variable {variable.name!r} has a sparse gradient, but its shards are no rows.",
                thing=f"variable {variable.name}, axis",
                value=shard.axis,
                remedy="Cut it along axis 0, or not at all.",
            )
        none = torch.empty(0, dtype=torch.int64, device=variable.alias.device)
        values = variable.alias.new_empty(0, *variable.alias.shape[1:])
        found.append(RowRange(variable, start, start + length, none, values, none))
    return found


def check_dense(model: nn.Module, variables: list[VariableRecord]) -> None:
    """Raises NotSupported where a variable that travels densely has a sparse gradient."""
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }
    for variable in variables:
        if id(variable.parameter) in tables:
            raise NotSupported(
                f"variable {variable.name!r} has a sparse gradient, but the plan carries a dense "
                "one.",
                thing=f"variable {variable.name}",
                value="sparse=True",
                remedy="Set sparse=False on its embedding as when it was tuned, or tune again.",
            )


class TouchedRows:
    """Splits a variable's sparse gradient among the buckets that carry its rows."""

    def __init__(
        self, variable: VariableRecord, ranges: list[RowRange], share: float, streams: Streams
    ):
        self.variable = variable
        self.ranges = ranges
        self.share = share
        self.streams = streams
        self._lock = Lock()
        self._gradient: Tensor | None = None
        self._is_split = True
        self._split_event: DeviceEvent = None

    def pack(self) -> None:
        """The gradient is complete. How many rows it has a GPU says only when it is done with it,
        so there the threads that issue messages split it, and backward goes on."""
        self._check()
        self._gradient, self._is_split = self.variable.parameter.grad, False
        if not self.streams.mode.threads:
            self.split()
            self._gradient = None

    def split(self) -> None:
        """Each bucket gets its rows, weighted and added up; the current stream waits for it."""
        with self._lock:
            if not self._is_split:
                with torch.no_grad():
                    self._distribute()
                self._is_split, self._split_event = True, self.streams.record_event()
        self.streams.wait_event(self._split_event)

    def _distribute(self) -> None:
        indices, values = self._rows()
        for rows in self.ranges:
            bounds = torch.tensor([rows.start, rows.stop], device=indices.device)
            low, high = (int(place) for place in torch.searchsorted(indices, bounds))
            rows.indices, rows.values = indices[low:high], values[low:high]

    def _rows(self) -> Rows:
        gradient, table = self._gradient, self.variable.alias
        if gradient is None:
            empty = torch.empty(0, dtype=torch.int64, device=table.device)
            return empty, table.new_empty(0, *table.shape[1:])
        rows = gradient.coalesce()
        return rows._indices()[0], rows._values() * self.share

    def _check(self) -> None:
        gradient = self.variable.parameter.grad
        if gradient is None:
            return
        if gradient.layout != torch.sparse_coo or gradient.sparse_dim() != 1:
            raise NotSupported(
                f"variable {self.variable.name!r} is synchronized by touched rows, but its "
                "gradient is dense.",
                thing=f"variable {self.variable.name}",
                value=str(gradient.layout),
                remedy="Set sparse=True on its embedding as when it was tuned, or tune again.",
            )


def sparse_tensor(rows: Rows, shape: tuple[int, ...], coalesced: bool = False) -> Tensor:
    indices, values = rows
    return torch.sparse_coo_tensor(
        indices.unsqueeze(0), values, shape, is_coalesced=coalesced, check_invariants=False
    )


def rows_message(plan: Plan, index: int, bucket: Bucket, groups: Groups, queue: str) -> Start:
    """What starts a message of touched rows on this rank.

    After SPARSE_ALL_GATHER every rank, after SPARSE_PUSH the root holds the sums; SPARSE_PULL
    writes the root's changed rows into the other ranks' tables.
    """
    message = plan.messages[index]
    operation = ragged_operation(plan, index, groups, queue)
    pulls = message.operation.from_owner
    at_root = operation.place == operation.root
    sums_here = not pulls and (at_root or not message.operation.to_owner)
    half = None if pulls else HALF.get(message.encoding)
    packers = [variable.packer for variable in bucket.variables]
    split = [] if pulls else [each.split for each in packers if isinstance(each, TouchedRows)]

    def start() -> Work:
        for each in split:
            each()
        sent = [_changed(rows) if pulls else (rows.indices, rows.values) for rows in bucket.ranges]
        pairs = zip(bucket.ranges, sent, strict=True)
        tensors = [t for rows, (i, v) in pairs for t in (i, v.to(_type_on_wire(rows, half)))]
        work = operation.start([len(indices) for indices, _ in sent], tensors)
        bucket.payload_bytes = work.sent_bytes

        def finish() -> None:
            if pulls:
                for counts, reader in work.received.values():
                    _write(bucket, _read(bucket, counts, reader, None))
            elif sums_here:
                arrived = {p: _read(bucket, *r, half) for p, r in work.received.items()}
                own = [(rows.indices, rows.values) for rows in bucket.ranges]
                _sum(bucket, {**arrived, operation.place: own})

        return Then(finish, work)

    return start


def _changed(rows: RowRange) -> Rows:
    return rows.changed, rows.variable.alias[rows.changed]


def _type_on_wire(rows: RowRange, half: torch.dtype | None) -> torch.dtype:
    """What has 16 bits travels as it is, as in dense messages."""
    table = rows.variable.alias
    return half if half is not None and table.element_size() > 2 else table.dtype


def _read(
    bucket: Bucket, counts: list[int], reader: PackedTensors, half: torch.dtype | None
) -> list[Rows]:
    found = []
    for rows, count in zip(bucket.ranges, counts, strict=True):
        table = rows.variable.alias
        indices = reader.take((count,), torch.int64)
        values = reader.take((count, *table.shape[1:]), _type_on_wire(rows, half))
        found.append((indices.to(table.device), values.to(table)))
    return found


def _sum(bucket: Bucket, by_place: dict[int, list[Rows]]) -> None:
    """The rows of all ranks in the order of the team, so that every rank rounds alike."""
    for number, rows in enumerate(bucket.ranges):
        summands = [by_place[place][number] for place in sorted(by_place)]
        indices = torch.cat([indices for indices, _ in summands]) - rows.start
        values = torch.cat([values for _, values in summands])
        shape = (rows.stop - rows.start, *rows.variable.alias.shape[1:])
        exact = sparse_tensor((indices, values.to(sum_type(values))), shape).coalesce()
        rows.sums = exact.to(rows.variable.alias.dtype)
        if bucket.whole:
            rows.variable.target = rows.sums


def _write(bucket: Bucket, arrived: list[Rows]) -> None:
    for rows, (indices, values) in zip(bucket.ranges, arrived, strict=True):
        rows.variable.alias.index_copy_(0, indices, values)
