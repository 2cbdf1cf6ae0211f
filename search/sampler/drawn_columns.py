"""The columns of the proposals that the kernels draw: one record for choices, one for shards."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ChoiceColumns(NamedTuple):
    """What n proposals choose as a whole, and for each of V variables.

    layout, order u8[n], slice_bytes i64[n], overlap, idle_gather bool[n]: as in `Population`.
    extension u16[n]: index into `SamplerInputs.extensions`.
    axis i8[n, V], parts i32[n, V]: the partition of each variable.
    synchronizer i16[n, V]: an index into `Tables.synchronizers`, or -1 where it is pinned.
    flat_length i64[n, V]: elements of a shard of the flattened tensor (the last may be shorter);
        of variables that are not cut along an axis.
    """

    layout: NDArray[np.uint8]
    order: NDArray[np.uint8]
    slice_bytes: NDArray[np.int64]
    overlap: NDArray[np.bool_]
    idle_gather: NDArray[np.bool_]
    extension: NDArray[np.uint16]
    axis: NDArray[np.int8]
    parts: NDArray[np.int32]
    synchronizer: NDArray[np.int16]
    flat_length: NDArray[np.int64]


class ShardColumns(NamedTuple):
    """The N shards of n proposals; the columns are those of `Population`.

    first i64[n + 1]: the shards of proposal i are first[i] to first[i + 1].
    server and group: -1 while they are not chosen; collectives have no server.
    """

    first: NDArray[np.int64]
    variable: NDArray[np.uint16]
    length: NDArray[np.int64]
    method: NDArray[np.uint8]
    server: NDArray[np.int16]
    option: NDArray[np.uint16]
    group: NDArray[np.int32]


def empty_choices(proposals: int, variables: int) -> ChoiceColumns:
    shape = (proposals, variables)
    return ChoiceColumns(
        layout=np.empty(proposals, dtype=np.uint8),
        order=np.empty(proposals, dtype=np.uint8),
        slice_bytes=np.empty(proposals, dtype=np.int64),
        overlap=np.empty(proposals, dtype=np.bool_),
        idle_gather=np.empty(proposals, dtype=np.bool_),
        extension=np.zeros(proposals, dtype=np.uint16),
        axis=np.empty(shape, dtype=np.int8),
        parts=np.empty(shape, dtype=np.int32),
        synchronizer=np.empty(shape, dtype=np.int16),
        flat_length=np.empty(shape, dtype=np.int64),
    )


def empty_shards(parts: NDArray[np.int32]) -> ShardColumns:
    """Room for as many shards as the proposals' variables have parts."""
    first = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(parts.sum(axis=1, dtype=np.int64), out=first[1:])
    rows = int(first[-1])
    return ShardColumns(
        first=first,
        variable=np.empty(rows, dtype=np.uint16),
        length=np.empty(rows, dtype=np.int64),
        method=np.empty(rows, dtype=np.uint8),
        server=np.empty(rows, dtype=np.int16),
        option=np.empty(rows, dtype=np.uint16),
        group=np.empty(rows, dtype=np.int32),
    )
