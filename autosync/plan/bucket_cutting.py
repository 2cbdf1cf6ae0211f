"""Buckets: groups of shards, cut into slices where the schedule asks for it, and their sizes.

In the subset of Python that numba compiles, like `message_chains` and `message_order`: training
processes run these functions as they are, on a single strategy, and `simulator/numba_compiler.py`
compiles the very same for populations.
"""

from autosync.codes import POWERSGD
from autosync.plan.compiler_arrays import (
    M_AG,
    M_AR,
    M_FACTORS,
    M_PS,
    M_RS,
    O_DDP,
    DomainArrays,
    PlanArrays,
    PopulationArrays,
    Scratch,
)

FACTOR_BYTES = 4  # PowerSGD's algebra is in float32, whatever the gradient's type
INDEX_BYTES = 8  # a touched row travels with its int64 index


def row_elements(domain: DomainArrays, variable: int, axis: int, length: int) -> int:
    """Elements of a shard of `length` along `axis` (elements when flat)."""
    if axis < 0:
        return length
    return length * (domain.elements[variable] // domain.dims[variable, axis])


def low_rank_gains(elements: int, rows: int, rank: int) -> bool:
    """Whether PowerSGD's two factors of `rank` columns are smaller than their matrix, which has
    `elements` in `rows`. A matrix for which they are not is sent unchanged."""
    return rank * (rows + elements // max(rows, 1)) < elements


def encoded_bytes(elements: int, item_bytes: int, rows: int, encoding: int) -> int:
    """Payload of `elements` values; `rows` is the first dimension, for PowerSGD's factors."""
    if encoding == 0:
        return elements * item_bytes
    if encoding < POWERSGD:
        return elements * min(item_bytes, 2)
    rank = encoding - POWERSGD
    if not low_rank_gains(elements, rows, rank):
        return elements * FACTOR_BYTES
    return rank * (rows + elements // max(rows, 1)) * FACTOR_BYTES


def second_factor_bytes(elements: int, rows: int, encoding: int) -> int:
    """The part of `encoded_bytes` that PowerSGD sends in its second all-reduce: Q, of r columns. A
    matrix that is sent unchanged is in the first."""
    if encoding < POWERSGD:
        return 0
    rank = encoding - POWERSGD
    if not low_rank_gains(elements, rows, rank):
        return 0
    return rank * (elements // max(rows, 1)) * FACTOR_BYTES


def first_dimension(domain: DomainArrays, variable: int, axis: int, length: int) -> int:
    """Rows of a shard: its length when axis 0 is cut; flat pieces count as one row."""
    if axis == 0:
        return length
    if axis < 0 and length != domain.elements[variable]:
        return 1
    return domain.dims[variable, 0]


def shard_bytes(
    domain: DomainArrays, method: int, variable: int, axis: int, length: int, encoding: int
) -> int:
    """Bytes that one replica contributes to synchronize a whole shard once."""
    item = domain.item_bytes[variable]
    elements = row_elements(domain, variable, axis, length)
    if method == M_FACTORS:
        rows = domain.dims[variable, 0]
        return domain.factor_rows[variable] * (rows + domain.elements[variable] // rows) * item
    if domain.sparse[variable] and method in (M_PS, M_AG):
        table_rows = domain.dims[variable, 0]
        rows = length if axis == 0 else table_rows
        touched = -(-domain.touched_rows[variable] * rows // table_rows)
        return touched * (encoded_bytes(elements // max(rows, 1), item, 1, encoding) + INDEX_BYTES)
    return encoded_bytes(elements, item, first_dimension(domain, variable, axis, length), encoding)


def pulled_bytes(domain: DomainArrays, variable: int, axis: int, length: int) -> int:
    """Bytes of the new values of the rows of a shard that any replica touched: at most all of its
    rows, at most the sum over replicas."""
    rows = length if axis == 0 else domain.dims[variable, 0]
    row_bytes = domain.elements[variable] // domain.dims[variable, 0] * domain.item_bytes[variable]
    touched = shard_bytes(domain, M_PS, variable, axis, length, 0)  # new values travel whole
    return min(touched * domain.world, rows * (row_bytes + INDEX_BYTES))


def sort_rows(domain: DomainArrays, population: PopulationArrays, index: int, work: Scratch) -> int:
    """Rows of strategy `index` by group, in gradient-ready order within each; returns the groups.

    work.starts i64[groups + 1]: where each group begins in work.rows i64[R].
    """
    starts, place, rows = work.starts, work.place, work.rows
    begin, end = population.first[index], population.first[index + 1]
    groups = 0
    for row in range(begin, end):
        groups = max(groups, population.group[row] + 1)
    starts[: groups + 1] = 0
    for row in range(begin, end):
        starts[population.group[row] + 1] += 1
    for group in range(groups):
        starts[group + 1] += starts[group]
    row = 0
    for variable in range(population.parts.shape[1]):
        place[variable] = row
        row += population.parts[index, variable]
    for variable in domain.by_ready:
        row = place[variable]
        for local in range(row, row + population.parts[index, variable]):
            group = population.group[begin + local]
            rows[starts[group]] = local
            starts[group] += 1
    for group in range(groups, 0, -1):
        starts[group] = starts[group - 1]
    starts[0] = 0
    return groups


def open_bucket(
    domain: DomainArrays, population: PopulationArrays, work: Scratch, bucket: int, row: int
) -> None:
    """Begin a bucket, still empty, with the shard of a row of the population."""
    work.row[bucket] = row
    work.wire[bucket] = 0
    work.value[bucket] = 0
    work.second[bucket] = 0
    work.ready[bucket] = 0
    work.gate[bucket] = domain.first_use[population.variable[row]]
    work.key[bucket] = population.position[row]


def slice_elements(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    variable: int,
    method: int,
    encoding: int,
) -> int:
    """At how many elements a bucket is cut; 0 where it stays whole."""
    dense = method in (M_AR, M_RS) or (method == M_PS and not domain.sparse[variable])
    if dense and population.order[index] != O_DDP and encoding < POWERSGD:
        return int(population.slice_bytes[index] // domain.item_bytes[variable])
    return 0


def cut_buckets(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    piece: int,
) -> int:
    """Groups, cut into slices where the schedule asks for it, as buckets `base` and on.

    Fills the pieces from `piece` on, and per bucket row, wire, value, ready, gate and (for the
    explicit order) key. Returns the number of buckets; bucket_first holds the rest.
    """
    groups = sort_rows(domain, population, index, work)
    begin = population.first[index]
    buckets = 0
    for group in range(groups):
        lead = begin + work.rows[work.starts[group]]
        variable = population.variable[lead]
        method = int(population.method[lead])
        encoding = population.encoding[population.option[lead]]
        if population.order[index] == O_DDP and domain.sparse[variable]:
            method = M_AG
        limit = slice_elements(domain, population, index, variable, method, encoding)
        filled = 0
        for at in range(work.starts[group], work.starts[group + 1]):
            local = work.rows[at]
            row = begin + local
            variable = population.variable[row]
            axis = population.axis[index, variable]
            length = population.length[row]
            elements = row_elements(domain, variable, axis, length)
            start = 0
            while start < elements:
                if (at == work.starts[group] and start == 0) or filled == 0:
                    open_bucket(domain, population, work, buckets, row)
                    out.bucket_first[base + buckets] = piece
                    buckets += 1
                bucket = buckets - 1
                stop = elements
                if limit > 0:
                    stop = min(elements, start + limit - filled)
                values = (stop - start) * domain.item_bytes[variable]
                if start == 0 and stop == elements:
                    work.wire[bucket] += shard_bytes(
                        domain, method, variable, axis, length, encoding
                    )
                    if method == M_PS and domain.sparse[variable]:
                        values = pulled_bytes(domain, variable, axis, length)
                    if method == M_AR:
                        work.second[bucket] += second_factor_bytes(
                            elements, first_dimension(domain, variable, axis, length), encoding
                        )
                else:
                    work.wire[bucket] += encoded_bytes(
                        stop - start, domain.item_bytes[variable], 1, encoding
                    )
                work.value[bucket] += values
                work.ready[bucket] = max(work.ready[bucket], domain.ready[variable])
                work.gate[bucket] = min(work.gate[bucket], domain.first_use[variable])
                work.key[bucket] = min(work.key[bucket], population.position[row])
                out.piece_row[piece] = local
                out.piece_start[piece] = start
                out.piece_stop[piece] = stop
                piece += 1
                filled += stop - start
                start = stop
                if filled == limit:
                    filled = 0
    out.bucket_first[base + buckets] = piece
    return buckets
