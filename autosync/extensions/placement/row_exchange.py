"""Rows of a batch, dealt from one division among the ranks to another; and their gradients back.

Rank r's loss L_r is over its own samples, and the plan applies the sum over ranks of s_r times the
gradient of L_r, with s_r its share. A rank's gradients are multiplied by its own share when they
are packed. So a gradient that travels from rank a to rank b, where it is multiplied by s_b, is
multiplied by s_a / s_b on the way. With even shares that is 1, and nothing is rounded.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from autosync.errors import AutosyncError
from autosync.runtime.execution.execution_trace import ExecutionTrace
from autosync.runtime.execution.monitor import Monitor
from autosync.runtime.transport.base import lost_peer


@dataclass(frozen=True, slots=True)
class RowRoute:
    """Of one rank: how many rows it sends to each rank, and receives from each."""

    sent: tuple[int, ...]
    received: tuple[int, ...]

    @property
    def back(self) -> "RowRoute":
        return RowRoute(self.received, self.sent)


def route_between(source: Sequence[int], target: Sequence[int], rank: int) -> RowRoute:
    """From the division `source` of a batch to the division `target`: rows of each rank, in the
    order of ranks."""
    have, want = _edges(source), _edges(target)
    ranks = range(len(source))
    sent = tuple(_common(have[rank], want[other]) for other in ranks)
    received = tuple(_common(have[other], want[rank]) for other in ranks)
    return RowRoute(sent, received)


def _edges(rows: Sequence[int]) -> list[tuple[int, int]]:
    stops = list(accumulate(rows))
    return [(stop - count, stop) for stop, count in zip(stops, rows, strict=True)]


def _common(first: tuple[int, int], second: tuple[int, int]) -> int:
    return max(0, min(first[1], second[1]) - max(first[0], second[0]))


@dataclass(frozen=True, slots=True)
class RowExchange:
    """Between the ranks of a gloo group of its own. shares: of the replicas. monitor: of the plan,
    by which a rank that cannot go on tells the others why."""

    group: Any
    rank: int
    shares: tuple[float, ...]
    monitor: Monitor | None = None

    @property
    def trace(self) -> ExecutionTrace | None:
        """Notes deals."""
        return None if self.monitor is None else self.monitor.trace

    def stop(self, error: AutosyncError) -> None:
        """This rank alone cannot go on, while the others wait in a deal: all end with its error."""
        if self.monitor is not None and self.monitor.failure is None:
            self.monitor.stop(error)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Raises SynchronizationFailed where a peer is lost, or what it has refused before."""
        try:
            yield
        except RuntimeError as error:
            text = f"ranks with placed modules did not exchange what they hold: {error}"
            if self.monitor is not None:
                raise self.monitor.fail(text, "process_group") from error
            raise lost_peer(text, "process_group", None, state_is_split=False) from error

    def deal(self, rows: Tensor, route: RowRoute) -> Tensor:
        """This rank's rows of the other division; gradients go the way back. A collective."""
        dealt: Tensor = _Dealt.apply(rows, self, route)  # type: ignore[no-untyped-call]
        return dealt

    def move(self, rows: Tensor, route: RowRoute) -> Tensor:
        """The same without gradients."""
        tail = rows.shape[1:]
        made = torch.empty((sum(route.received), *tail), dtype=rows.dtype, device=rows.device)
        row_bytes = tail.numel() * rows.element_size()
        given = rows.detach().contiguous().view(-1).view(torch.uint8)
        begun = time.monotonic()
        with self.exchanging():
            self.group.alltoall_base(
                made.view(-1).view(torch.uint8),
                given,
                [count * row_bytes for count in route.received],
                [count * row_bytes for count in route.sent],
            ).wait()
        if self.trace is not None:
            to_others = sum(route.sent) - route.sent[self.rank]
            self.trace.dealt("all_to_all", begun, to_others * row_bytes)
        return made

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """What every rank gives, by rank. A collective."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        found = [torch.empty_like(mine) for _ in self.shares]
        begun = time.monotonic()
        with self.exchanging():
            self.group.allgather([found], [mine]).wait()
        if self.trace is not None:
            self.trace.dealt("all_gather", begun, mine.nbytes * (len(self.shares) - 1))
        return [row.tolist() for row in found]

    def broadcast(self, value: Tensor, source: int) -> Tensor:
        """The source's tensor, into one of the same shape and type on every rank. A collective."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        with self.exchanging():
            self.group.broadcast([value.view(-1).view(torch.uint8)], options).wait()
        return value

    def broadcast_text(self, text: str, source: int) -> str:
        """The source's text, on every rank. A collective."""
        given = text.encode()
        size = self.broadcast(torch.tensor([len(given)]), source)
        flat = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == source:
            flat.copy_(torch.frombuffer(bytearray(given), dtype=torch.uint8))
        return bytes(self.broadcast(flat, source).tolist()).decode()

    def weighted(self, gradients: Tensor, route: RowRoute) -> Tensor:
        """Gradients that have arrived, each multiplied by its sender's share over this rank's."""
        own = self.shares[self.rank]
        factors = [share / own for share in self.shares]
        if all(factor == 1.0 for factor in factors):
            return gradients
        accurate = torch.promote_types(gradients.dtype, torch.float32)  # than half precision
        each = torch.tensor(factors, dtype=accurate, device=gradients.device)
        of_row = each.repeat_interleave(torch.tensor(route.received))
        return gradients.mul_(of_row.view(-1, *(1,) * (gradients.dim() - 1)))


class _Dealt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: RowExchange, route: RowRoute) -> Tensor:
        ctx.exchange, ctx.route = exchange, route
        return exchange.move(rows, route)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        back = ctx.route.back
        return ctx.exchange.weighted(ctx.exchange.move(gradient, back), back), None, None


def tied(output: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The output, whose backward pass reaches every input, also those that the module does not read
    or detaches: ranks that compute none of it, see `no_rows`, deal the gradients of all."""
    trained = [each for each in inputs if each.requires_grad]
    if not (output.requires_grad and trained):
        return output
    made: Tensor = _Tied.apply(output, *trained)  # type: ignore[no-untyped-call]
    return made


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, *inputs: Tensor) -> Tensor:
        ctx.count = len(inputs)
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *(None,) * ctx.count


def no_rows(inputs: Sequence[Tensor], like: Tensor, trains: bool) -> Tensor:
    """Zero rows in the place of a module's output on a rank that computes none of it.

    Backward runs through it: autograd runs nodes in the reverse order of their making, so every
    rank deals gradients in the same order. like: shape and type. trains: elsewhere it has a
    gradient, be it of variables that this rank does not hold.
    """
    if not trains:
        return like
    anchor = torch.zeros((), requires_grad=True)
    made: Tensor = _NoRows.apply(like, anchor, *inputs)  # type: ignore[no-untyped-call]
    return made


class _NoRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, like: Tensor, anchor: Tensor, *inputs: Tensor) -> Tensor:
        ctx.inputs = [
            (each.shape, each.dtype, each.device) if needed else None
            for each, needed in zip(inputs, ctx.needs_input_grad[2:], strict=True)
        ]
        return like.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        zeros = (
            None if form is None else torch.zeros(form[0], dtype=form[1], device=form[2])
            for form in ctx.inputs
        )
        return None, None, *zeros
