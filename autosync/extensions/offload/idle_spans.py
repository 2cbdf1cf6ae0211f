"""What a pass over a model does to a device's memory: moments, and who is idle in which of them.

A moment is what runs between two points at which something may be moved: an operation of the
forward or backward pass in a graph, the work between two saved tensors in a running job.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

SMALLEST_BYTES = 1 << 16
"""Tensors below this stay: a transfer costs some ten microseconds to start, in which a slot of 16
PCIe 3 lanes carries about twice as much."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Of M moments. seconds f64[M]: of compute alone. base_bytes f64[M]: the most that the device
    holds in each while every idle span is spent elsewhere."""

    seconds: F64
    base_bytes: F64

    def starts(self) -> F64:
        """When each begins, and the end of the last: `(M + 1,)` seconds of compute."""
        return np.concatenate(([0.0], np.cumsum(self.seconds)))


@dataclass(frozen=True, slots=True)
class IdleSpans:
    """Of S spans, in which a tensor is on the device and nobody uses it.

    size_bytes f64[S]. tensor i64[S]: whose content it is; spans of one tensor follow each other.
    final i64[S]: the moment from whose beginning on the tensor can be copied away: its content
    does not change any more. begin, end i64[S]: idle in the moments begin:end, used again in `end`.
    """

    size_bytes: F64
    tensor: I64
    final: I64
    begin: I64
    end: I64

    def __len__(self) -> int:
        return len(self.size_bytes)

    def copied(self, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`(S,)`: which of those that are not kept have to be copied to the host: the first of
        each tensor. Later ones find the host's copy still good."""
        away = np.flatnonzero(~kept)
        _, first = np.unique(self.tensor[away], return_index=True)
        copied = np.zeros(len(self), dtype=np.bool_)
        copied[away[first]] = True
        return copied


@dataclass(frozen=True, slots=True)
class HostLink:
    """Between a device and its host, as fast in both directions and in both at once."""

    bytes_per_second: float

    def seconds(self, size_bytes: float) -> float:
        return size_bytes / self.bytes_per_second


def by_moment(chosen: NDArray[np.bool_], moments: I64, values: I64) -> defaultdict[int, list[int]]:
    """Of chosen spans, bool[S], the values, i64[S], by their moments, i64[S]."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for moment, value in zip(moments[chosen].tolist(), values[chosen].tolist(), strict=True):
        found[moment].append(value)
    return found


def joined(first: IdleSpans, second: IdleSpans) -> IdleSpans:
    """Of different tensors; those of the second are numbered behind those of the first."""
    behind = 1 + int(first.tensor.max(initial=-1))
    return IdleSpans(
        size_bytes=np.concatenate((first.size_bytes, second.size_bytes)),
        tensor=np.concatenate((first.tensor, behind + second.tensor)),
        final=np.concatenate((first.final, second.final)),
        begin=np.concatenate((first.begin, second.begin)),
        end=np.concatenate((first.end, second.end)),
    )


def spans_of(rows: list[tuple[float, int, int, int, int]]) -> IdleSpans:
    """rows: size, tensor, final, begin and end of each; spans without a moment are left out."""
    real = sorted((row for row in rows if row[3] < row[4]), key=lambda row: (row[1], row[3]))
    columns = np.array(real, dtype=np.float64).reshape(len(real), 5).T
    size, tensor, final, begin, end = columns
    return IdleSpans(size, *(column.astype(np.int64) for column in (tensor, final, begin, end)))
