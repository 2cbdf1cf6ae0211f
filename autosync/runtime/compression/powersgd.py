"""PowerSGD (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2): a matrix travels as two thin
factors of rank r, whose error is fed back into the next iteration.

The sum over ranks of a matrix M (n, m) is approximated as P Q^T: P (n, r) = M Q with the Q of the
iteration before (warm start), summed and orthonormalized; then Q (m, r) = M^T P, summed. Each rank
keeps the error M - P (its own Q)^T, and the errors of all ranks add up to what the message lost.
Matrices too small to gain travel as they are, beside P.

Errors and warm starts are the plan's, not the optimizer's: a checkpoint does not hold them, and a
job that resumes begins with neither, as with torch's PowerSGD hook.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autosync.codes import POWERSGD, Op
from autosync.errors import InvalidInput
from autosync.plan import Message, Plan
from autosync.plan.bucket_cutting import low_rank_gains
from autosync.runtime.layout.records import Bucket, VariableRecord
from autosync.runtime.transport.base import Start, Then, Work, operation_of
from autosync.runtime.transport.process_groups import Groups


class LowRank:
    """One variable's matrix, with its error (n, m) and q (m, r) from iteration to iteration.

    matrix: its place in the bucket's buffer, of any floating type; the algebra is in float32.
    seed: of the first Q, the same on every rank.
    """

    def __init__(self, variable: VariableRecord, matrix: Tensor, rank: int, seed: int):
        self.variable = variable
        self.matrix = matrix
        self.rank = rank
        self.error = torch.zeros_like(matrix, dtype=torch.float32)
        generator = torch.Generator("cpu").manual_seed(seed)
        shape = (matrix.shape[1], rank)
        self.q = torch.randn(shape, generator=generator, device="cpu").to(self.error)
        self.corrected = self.p = self.own = self.q.new_zeros(0)  # of the iteration under way
        if self.error.is_cuda:  # torch loads its algebra at the first use, on one thread at most
            torch.linalg.qr(self.error.new_ones(1, 1))

    def first(self) -> Tensor:
        """This rank's part of P."""
        self.corrected = self.matrix.float().add_(self.error)
        return self.corrected @ self.q

    def second(self, p: Tensor) -> Tensor:
        """From the summed P, this rank's part of Q."""
        self.p = torch.linalg.qr(p).Q
        self.own = self.corrected.t() @ self.p
        return self.own

    def decode(self, q: Tensor) -> None:
        """From the summed Q, the approximated sum. Overflows are for a GradScaler to see: they
        must not stay in the error."""
        sound = q.isfinite().all()
        lost = self.p @ self.own.t()
        torch.sub(self.corrected, lost, out=lost)
        if self.error.is_cuda:  # where this thread, which has peers to watch, does not wait to know
            torch.where(sound, lost, self.error, out=self.error)
            self.q = torch.where(sound, q, self.q)
        elif sound:
            self.error, self.q = lost, q.clone()
        self.matrix.copy_(self.p @ q.t())


class LowRankBucket:
    """What a bucket carries under PowerSGD, in two all-reduces: P of every matrix beside the values
    that do not gain, then Q. A bucket in which nothing gains has the first message only.

    Both travel in float32, in buffers that are allocated once: a GPU may still read what a message
    carried when the message has completed.
    """

    def __init__(self, bucket: Bucket, rank: int):
        self.matrices, self._rest = split_bucket(bucket, rank)
        p_shapes = [(one.matrix.shape[0], rank) for one in self.matrices]
        q_shapes = [(one.matrix.shape[1], rank) for one in self.matrices]
        rest_shapes = [tuple(values.shape) for values in self._rest]
        device = bucket.buffer.device
        self._first, places = _flat_of_shapes([*p_shapes, *rest_shapes], device)
        self._ps, self._rest_places = places[: len(p_shapes)], places[len(p_shapes) :]
        self._second, self._qs = _flat_of_shapes(q_shapes, device)

    def start_of(self, plan: Plan, index: int, groups: Groups, queue: str) -> Start | None:
        """What starts message `index` on this rank; None when it is alone."""
        message = plan.messages[index]
        team = plan.team_of(message, groups.rank)
        if len(team) < 2:
            return None
        flat = self._flat_of(message)
        operation = operation_of(plan, index, groups.rank, len(flat))
        start = groups.transport(queue, team).prepare(operation, flat, flat)
        if message.after >= 0:
            return lambda: Then(self._decode, start())

        def start_first() -> Work:
            parts = [one.first().view(-1) for one in self.matrices]
            torch.cat([*parts, *(values.float() for values in self._rest)], out=self._first)
            return Then(self._make_second, start())

        return start_first

    def payload_bytes(self, message: Message) -> int:
        return self._flat_of(message).nbytes

    def _flat_of(self, message: Message) -> Tensor:
        return self._first if message.after < 0 else self._second

    def _make_second(self) -> None:
        seconds = [m.second(p).reshape(-1) for m, p in zip(self.matrices, self._ps, strict=True)]
        if seconds:
            torch.cat(seconds, out=self._second)
        for values, place in zip(self._rest, self._rest_places, strict=True):
            values.copy_(place)

    def _decode(self) -> None:
        for one, q in zip(self.matrices, self._qs, strict=True):
            one.decode(q)


def low_rank_buckets(plan: Plan, buckets: list[Bucket]) -> dict[int, LowRankBucket]:
    """By index, the buckets that all-reduces of a plan pack by PowerSGD.

    Raises:
        InvalidInput: a bucket's matrices have no message for Q.
    """
    carried: dict[int, list[Message]] = {}
    for message in plan.messages:
        if message.encoding > POWERSGD and message.operation == Op.ALL_REDUCE:
            carried.setdefault(message.bucket, []).append(message)
    found = {}
    for index, messages in carried.items():
        found[index] = LowRankBucket(buckets[index], messages[0].encoding - POWERSGD)
        if found[index].matrices and len(messages) != 2:
            raise InvalidInput(
                f"bucket {index} of the plan is packed by PowerSGD in {len(messages)} message; "
                "its two factors take two.",
                thing=f"bucket {index}",
                value=len(messages),
                remedy="This plan was compiled by an earlier version: tune again.",
            )
    return found


def split_bucket(bucket: Bucket, rank: int) -> tuple[list[LowRank], list[Tensor]]:
    """The matrices that gain by it, and flat views of all else."""
    matrices, rest = [], []
    for number, (variable, segment, view) in enumerate(bucket.pieces):
        whole = segment.shape == tuple(variable.parameter.shape)
        if whole and view.dim() > 1:
            matrix = view.view(view.shape[0], -1)
            if low_rank_gains(matrix.numel(), len(matrix), rank):
                matrices.append(LowRank(variable, matrix, rank, number))
                continue
        rest.append(view.reshape(-1))
    return matrices, rest


def _flat_of_shapes(
    shapes: Sequence[tuple[int, ...]], device: torch.device
) -> tuple[Tensor, list[Tensor]]:
    """A buffer for tensors of these shapes one after another, float32, and views of each."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
    return flat, [part.view(s) for part, s in zip(flat.split(sizes), shapes, strict=True)]
