"""PowerSGD (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2): a matrix travels as two thin
factors of rank r, whose error is fed back into the next iteration.

The sum over ranks of a matrix M (n, m) is approximated as P Q^T: P (n, r) = M Q with the Q of the
iteration before (warm start), summed and orthonormalized; then Q (m, r) = M^T P, summed. Each rank
keeps the error M - P (its own Q)^T, and the errors of all ranks add up to what the message lost.
Matrices too small to gain travel as they are, beside P.

Checkpoints: P and Q are linear in what the ranks put in, so the future depends on the sum of their
errors only. A checkpoint holds that sum, and each of any number of ranks that load it goes on with
an equal part. The warm start Q is kept where the rank r is the same, and begins anew elsewhere.
Both are entries of a parameter's state in the optimizer's state_dict, because torch's functions for
checkpoints carry those on; torch's optimizers leave them alone.
"""

import math
import warnings
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

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
        self.seed = seed
        self.error = torch.zeros_like(matrix, dtype=torch.float32)
        self.q = self._first_q()
        self.corrected = self.p = self.own = self.q.new_zeros(0)  # of the iteration under way
        if self.error.is_cuda:  # torch loads its algebra at the first use, on one thread at most
            torch.linalg.qr(self.error.new_ones(1, 1))

    def _first_q(self) -> Tensor:
        generator = torch.Generator("cpu").manual_seed(self.seed)
        shape = (self.matrix.shape[1], self.rank)
        return torch.randn(shape, generator=generator, device="cpu").to(self.error)

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

    def restart(self, error: Tensor | None = None, q: Tensor | None = None) -> None:
        """Go on from this rank's part of an error and from a warm start, or from neither. A Q of
        another rank is of no use."""
        if error is None:
            self.error.zero_()
        else:
            self.error.copy_(error.view(self.error.shape))
        fits = q is not None and q.shape == self.q.shape
        self.q = q.to(self.q) if q is not None and fits else self._first_q()


class LowRankBucket:
    """What a bucket carries under PowerSGD, in two all-reduces: P of every matrix beside the values
    that do not gain, then Q. A bucket in which nothing gains has the first message only.

    Both travel in float32, in buffers that are allocated once: a GPU may still read what a message
    carried when the message has landed.
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


ERROR = "powersgd_error"
"""Entry of the variable's shape, float32: the sum over ranks."""

Q = "powersgd_q"

SavedErrors = dict[Tensor, dict[str, Tensor]]
"""By parameter, the entries."""


def gather_errors(optimizer: Optimizer, matrices: Iterable[LowRank], control: Any) -> SavedErrors:
    """A collective over `control`, the same on every rank. Variables that the optimizer does not
    hold are left out."""
    saved: SavedErrors = {}
    for one in _held(optimizer, matrices):
        error = one.error.cpu().clone()
        control.allreduce([error], dist.AllreduceOptions()).wait()
        shape = one.variable.parameter.shape
        saved[one.variable.parameter] = {ERROR: error.view(shape), Q: one.q.detach().cpu().clone()}
    return saved


def restore_errors(
    optimizer: Optimizer, matrices: Iterable[LowRank], saved: SavedErrors, ranks: int
) -> None:
    """Go on from a checkpoint's errors, or from none where it has none.

    Warns where it holds errors of variables that this plan sends otherwise: they are dropped.

    Raises:
        InvalidInput: an error has not the shape of its variable.
    """
    left = dict(saved)
    for one in _held(optimizer, matrices):
        entry = left.pop(one.variable.parameter, None)
        if entry is None:
            one.restart()
            continue
        shape = tuple(one.variable.parameter.shape)
        if tuple(entry[ERROR].shape) != shape:
            raise InvalidInput(
                f"the checkpoint's PowerSGD error of variable {one.variable.name!r} has shape "
                f"{tuple(entry[ERROR].shape)}, the variable {shape}.",
                thing=f"state_dict, {ERROR} of variable {one.variable.name}",
                value=tuple(entry[ERROR].shape),
                remedy="Load a checkpoint of this model.",
            )
        one.restart(entry[ERROR] / ranks, entry[Q])
    if left:
        warnings.warn(
            f"the checkpoint holds what PowerSGD had not yet sent of {len(left)} variables, which "
            "this plan does not pack by PowerSGD: it is dropped.",
            stacklevel=4,
        )


def take_errors(
    optimizer: Optimizer, state_dict: dict[str, Any]
) -> tuple[dict[str, Any], SavedErrors]:
    """A state_dict of the optimizer without the errors, and the errors."""
    by_key = dict(zip(saved_keys(state_dict), parameters_of(optimizer), strict=False))
    state: dict[Any, Any] = {}
    errors: SavedErrors = {}
    for key, entry in state_dict["state"].items():
        rest, error = _taken(entry)
        if error and (parameter := by_key.get(key)) is not None:
            errors[parameter] = error
        if rest or not error:
            state[key] = rest
    return {**state_dict, "state": state}, errors


def pop_errors(state: MutableMapping[Tensor, Any]) -> SavedErrors:
    """Those that an optimizer has loaded while it followed no plan, out of its state."""
    errors: SavedErrors = {}
    for parameter in list(state):
        rest, error = _taken(state[parameter])
        if error:
            state[parameter], errors[parameter] = rest, error
    return errors


def _taken(entry: Any) -> tuple[Any, dict[str, Tensor]]:
    """A parameter's state without the errors, and the errors."""
    if not isinstance(entry, dict) or ERROR not in entry:
        return entry, {}
    rest = {name: value for name, value in entry.items() if name not in (ERROR, Q)}
    return rest, {name: entry[name] for name in (ERROR, Q)}


def saved_keys(state_dict: dict[str, Any]) -> list[Any]:
    """What a state_dict calls the parameters, in order: numbers, or names."""
    return [key for group in state_dict["param_groups"] for key in group["params"]]


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """In the order of a state_dict."""
    return [p for group in optimizer.__dict__["param_groups"] for p in group["params"]]


def _held(optimizer: Optimizer, matrices: Iterable[LowRank]) -> list[LowRank]:
    held = {id(parameter) for parameter in parameters_of(optimizer)}
    return [one for one in matrices if id(one.variable.parameter) in held]
