"""Groups of shards as buckets, cut into slices where the schedule asks for it.

Like `compiler_kernels`, in the subset of Python that numba compiles.
"""

from autosync.codes import POWERSGD
from autosync.plan.compiler_arrays import DomainArrays, PlanArrays, PopulationArrays, Scratch
from autosync.plan.compiler_kernels import (
    M_AG,
    M_AR,
    M_PS,
    M_RS,
    O_DDP,
    encoded_bytes,
    first_dimension,
    row_elements,
    second_factor_bytes,
    shard_bytes,
    sort_rows,
)


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
    groups = sort_rows(domain, population, index, work.starts, work.place, work.rows)
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
                if start == 0 and stop == elements:
                    work.wire[bucket] += shard_bytes(
                        domain, method, variable, axis, length, encoding
                    )
                    if method == M_AR:
                        work.second[bucket] += second_factor_bytes(
                            elements, first_dimension(domain, variable, axis, length), encoding
                        )
                else:
                    work.wire[bucket] += encoded_bytes(
                        stop - start, domain.item_bytes[variable], 1, encoding
                    )
                work.value[bucket] += (stop - start) * domain.item_bytes[variable]
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
