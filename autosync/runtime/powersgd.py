"""PowerSGD (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2): a matrix travels as two thin
factors of rank r, whose error is fed back into the next iteration.

The sum over ranks of a matrix M (n, m) is approximated as P Q^T: P (n, r) = M Q with the Q of the
iteration before (warm start), summed and orthonormalized; then Q (m, r) = M^T P, summed. Each rank
keeps M - P (its own Q)^T, so what all ranks keep is what the message lost. 1-D tensors and matrices
too small to gain travel as they are. The kept errors are no part of a checkpoint.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from autosync.codes import POWERSGD
from autosync.plan import Plan
from autosync.runtime.records import Content, Finish
from autosync.runtime.transport import Groups, Start, team_of

SECOND = "-powersgd"
"""Queue of the second factor, which the landing thread sends: it must not mix with first ones."""


class LowRank:
    """One matrix: error (n, m) and q (m, r), kept from iteration to iteration.

    matrix: its place in the content's buffer, of any floating type; the algebra is in float32.
    """

    def __init__(self, matrix: Tensor, rank: int, seed: int):
        self.matrix = matrix
        self.kept = torch.zeros_like(matrix, dtype=torch.float32)
        columns = matrix.shape[1]
        start = torch.randn(columns, rank, generator=torch.Generator().manual_seed(seed))
        self.q = start.to(matrix.device)
        self.p = start.new_zeros(0)
        self.own = start.new_zeros(0)

    def first(self) -> Tensor:
        """This rank's part of P."""
        self.matrix.add_(self.kept)
        return self.matrix.float() @ self.q

    def second(self, p: Tensor) -> Tensor:
        """From the summed P, this rank's part of Q."""
        self.p = torch.linalg.qr(p).Q
        self.own = self.matrix.float().t() @ self.p
        return self.own

    def decode(self, q: Tensor) -> None:
        """From the summed Q, the approximated sum. Overflows are for a GradScaler to see: they
        must not stay in the error."""
        if q.isfinite().all():
            torch.sub(self.matrix.float(), self.p @ self.own.t(), out=self.kept)
            self.q = q.clone()
        self.matrix.copy_(self.p @ q.t())


def low_rank(plan: Plan, index: int, content: Content, groups: Groups, queue: str) -> Start | None:
    """What issues an all-reduce by PowerSGD; None when this rank is alone."""
    message = plan.messages[index]
    team = team_of(plan.teams[message.teams], groups.rank)
    if len(team) < 2:
        return None
    group, later = groups.get(queue, team), groups.get(queue + SECOND, team)
    matrices, rest = split_content(content, message.encoding - POWERSGD)
    rows = [(len(one.matrix), one.q.shape[1]) for one in matrices]
    columns = [(one.matrix.shape[1], one.q.shape[1]) for one in matrices]

    def start() -> Finish:
        flat = torch.cat([*(one.first().view(-1) for one in matrices), *(v.float() for v in rest)])
        arrive = _all_reduce(group, flat)

        def finish() -> None:
            arrive()
            parts, place = _shaped(flat, rows)
            seconds = [one.second(p).reshape(-1) for one, p in zip(matrices, parts, strict=True)]
            if seconds:
                summed = torch.cat(seconds)
                _all_reduce(later, summed)()
                for one, q in zip(matrices, _shaped(summed, columns)[0], strict=True):
                    one.decode(q)
            for values in rest:
                values.copy_(flat[place : place + len(values)])
                place += len(values)

        return finish

    return start


def split_content(content: Content, rank: int) -> tuple[list[LowRank], list[Tensor]]:
    """The matrices that gain by it, and flat views of all else."""
    matrices, rest = [], []
    for number, (variable, segment, view) in enumerate(content.pieces):
        whole = segment.shape == tuple(variable.parameter.shape)
        if whole and view.dim() > 1:
            matrix = view.view(view.shape[0], -1)
            if rank * sum(matrix.shape) < matrix.numel():
                matrices.append(LowRank(matrix, min(rank, *matrix.shape), number))
                continue
        rest.append(view.reshape(-1))
    return matrices, rest


def _all_reduce(group: object, flat: Tensor) -> Callable[[], None]:
    wait: Callable[[], None] = group.allreduce([flat], dist.AllreduceOptions()).wait  # type: ignore[attr-defined]
    return wait


def _shaped(flat: Tensor, shapes: list[tuple[int, int]]) -> tuple[list[Tensor], int]:
    """Matrices one after another in `flat`, and where they end."""
    found, place = [], 0
    for rows, columns in shapes:
        found.append(flat[place : place + rows * columns].view(rows, columns))
        place += rows * columns
    return found, place
