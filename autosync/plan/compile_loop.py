"""The compiler's main loop: strategy by strategy, contents, their order, their messages.

Like `kernels`, in the subset of Python that numba compiles.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.plan.compile_kernels import (
    M_AG,
    M_AR,
    M_PS,
    M_RS,
    O_DDP,
    O_EXPLICIT,
    O_PRIORITY,
    POWERSGD_CODE,
    PULL,
    SPARSE_PULL,
    T_ALL,
    U_OWNER,
    U_SHARD,
    chain,
    content_bytes,
    encoded_bytes,
    first_dimension,
    first_half_load,
    list_schedule,
    pulled_bytes,
    row_elements,
    second_factor_bytes,
    sort_keys,
    sort_rows,
)
from autosync.plan.compiler_arrays import DomainArrays, PopulationArrays

I64 = NDArray[np.int64]


class PlanArrays(NamedTuple):
    """The columns of a PlanTable, allocated for the most that can come out."""

    first: I64
    operation: NDArray[np.uint8]
    channel: NDArray[np.uint8]
    root: NDArray[np.int16]
    ranks: NDArray[np.uint16]
    encoding: NDArray[np.uint8]
    wire_bytes: I64
    ready: NDArray[np.int32]
    after: I64
    gate: NDArray[np.int32]
    update: NDArray[np.uint8]
    content: I64
    content_first: I64
    piece_row: I64
    piece_start: I64
    piece_stop: I64


class Scratch(NamedTuple):
    """Per-strategy working arrays: R rows, V variables, C contents at most.

    row, value: a content's first row (population index) and its payload were it not encoded.
    second: of its payload, what PowerSGD's second all-reduce carries; else 0. load: seconds on the
    wire of its first half. at: seconds from the start of backward, of its gradients and then of
    its first half's arrival.
    """

    starts: I64
    place: I64
    rows: I64
    row: I64
    wire: I64
    value: I64
    second: I64
    ready: I64
    gate: I64
    key: I64
    order: I64
    sorted: I64
    heap: I64
    last: I64
    load: NDArray[np.float64]
    at: NDArray[np.float64]
    stages: NDArray[np.int32]


def cut_contents(
    domain: DomainArrays,
    people: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    piece: int,
) -> int:
    """Groups, cut into slices where the schedule asks for it, as contents `base` and on.

    Fills the pieces from `piece` on, and per content row, wire, value, ready, gate and (for the
    explicit order) key. Returns the number of contents; content_first holds the rest.
    """
    groups = sort_rows(domain, people, index, work.starts, work.place, work.rows)
    begin = people.first[index]
    contents = 0
    for group in range(groups):
        lead = begin + work.rows[work.starts[group]]
        variable = people.variable[lead]
        method = int(people.method[lead])
        encoding = people.encoding[people.option[lead]]
        if people.order[index] == O_DDP and domain.sparse[variable]:
            method = M_AG
        dense = method in (M_AR, M_RS) or (method == M_PS and not domain.sparse[variable])
        limit = 0
        if dense and people.order[index] != O_DDP and encoding < POWERSGD_CODE:
            limit = people.slice_bytes[index] // domain.item_bytes[variable]
        filled = 0
        for at in range(work.starts[group], work.starts[group + 1]):
            local = work.rows[at]
            row = begin + local
            variable = people.variable[row]
            axis = people.axis[index, variable]
            length = people.length[row]
            elements = row_elements(domain, variable, axis, length)
            start = 0
            while start < elements:
                if (at == work.starts[group] and start == 0) or filled == 0:
                    work.row[contents] = row
                    work.wire[contents] = 0
                    work.value[contents] = 0
                    work.second[contents] = 0
                    work.ready[contents] = 0
                    work.gate[contents] = domain.first_use[variable]
                    work.key[contents] = people.position[row]
                    out.content_first[base + contents] = piece
                    contents += 1
                content = contents - 1
                stop = elements
                if limit > 0:
                    stop = min(elements, start + limit - filled)
                if start == 0 and stop == elements:
                    work.wire[content] += content_bytes(
                        domain, method, variable, axis, length, encoding
                    )
                    if method == M_AR:
                        work.second[content] += second_factor_bytes(
                            elements, first_dimension(domain, variable, axis, length), encoding
                        )
                else:
                    work.wire[content] += encoded_bytes(
                        stop - start, domain.item_bytes[variable], 1, encoding
                    )
                work.value[content] += (stop - start) * domain.item_bytes[variable]
                work.ready[content] = max(work.ready[content], domain.ready[variable])
                work.gate[content] = min(work.gate[content], domain.first_use[variable])
                work.key[content] = min(work.key[content], people.position[row])
                out.piece_row[piece] = local
                out.piece_start[piece] = start
                out.piece_stop[piece] = stop
                piece += 1
                filled += stop - start
                start = stop
                if filled == limit:
                    filled = 0
    out.content_first[base + contents] = piece
    return contents


def first_half_order(
    domain: DomainArrays, people: PopulationArrays, index: int, work: Scratch, contents: int
) -> None:
    """The order in which contents are first sent, into work.order; work.load and work.at become
    what their first half puts on the wire, and when it has arrived."""
    for content in range(contents):
        work.heap[content] = work.ready[content] * contents + content
        method = int(people.method[work.row[content]])
        owner = int(people.server[work.row[content]]) if method == M_PS else -1
        load_bytes = work.wire[content] * first_half_load(domain, method)
        work.load[content] = load_bytes / domain.bytes_per_second[owner + 1]
        work.at[content] = domain.ready_seconds[work.ready[content]]
    if people.order[index] == O_PRIORITY:
        sort_keys(work.heap, work.sorted, contents)
        coming = work.sorted[:contents]
        list_schedule(coming, work.at, work.gate, work.load, work.heap, work.order)
    else:
        if people.order[index] == O_EXPLICIT:
            for content in range(contents):
                work.heap[content] = work.key[content] * contents + content
        sort_keys(work.heap, work.order, contents)
    now = 0.0
    for position in range(contents):
        content = work.order[position]
        now = max(now, work.at[content]) + work.load[content]
        work.at[content] = now


def second_half_order(
    domain: DomainArrays, people: PopulationArrays, index: int, work: Scratch, contents: int
) -> None:
    """Deferred second halves. Where they overlap the forward pass: from the end of backward, of
    those whose first half has arrived the nearest use first, so that the one used first does not
    hold up the wire until its own first half, the last one, is through; else as they were sent.
    """
    if not people.overlap[index] or people.order[index] == O_EXPLICIT:
        return
    stepped = domain.ready_seconds[-1]
    for position in range(contents):
        content = work.order[position]
        work.sorted[position] = content
        work.at[content] = max(work.at[content], stepped)
        if people.method[work.row[content]] not in (M_PS, M_RS):
            work.load[content] = 0.0
    coming = work.sorted[:contents]
    list_schedule(coming, work.at, work.gate, work.load, work.heap, work.order)


def emit(
    domain: DomainArrays,
    people: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    message: int,
    content: int,
    second_half: bool,
    ring_base: int,
) -> int:
    """Append the messages of one content from `message` on; returns the next free message.

    The first half of a chain ends where its second half must wait: for `step()` when an owner or
    a shard updates, or for the next forward pass when a reduce-scatter overlaps it.
    """
    row = work.row[content]
    option = people.option[row]
    variable = people.variable[row]
    method = people.method[row]
    encoding = people.encoding[option]
    ring = people.ring[option]
    server = people.server[row]
    stages = work.stages
    count = chain(
        domain,
        method,
        domain.sparse[variable],
        people.order[index] == O_DDP,
        people.algorithm[option],
        ring_base + ring if ring >= 0 else T_ALL,
        people.hierarchical[option],
        people.sharded[option],
        server,
        work.second[content] > 0,
        stages,
    )
    split = count
    for stage in range(1, count):
        waits = stages[stage - 1, 4] == U_OWNER or stages[stage - 1, 4] == U_SHARD
        if stages[stage, 5] == 1 and (waits or people.overlap[index]):
            split = min(split, stage)
    values = False
    for stage in range(count):
        if (stage >= split) == second_half:
            operation = stages[stage, 0]
            after_shard = stage > 0 and stages[stage - 1, 4] == U_SHARD
            values = values or operation in (PULL, SPARSE_PULL) or after_shard
            out.operation[message] = operation
            out.channel[message] = stages[stage, 1]
            out.root[message] = stages[stage, 2]
            out.ranks[message] = stages[stage, 3]
            out.update[message] = stages[stage, 4]
            out.encoding[message] = 0 if values else encoding
            out.wire_bytes[message] = work.value[content] if values else work.wire[content]
            if work.second[content] > 0:
                out.wire_bytes[message] = work.second[content]
                if stage == 0:
                    out.wire_bytes[message] = work.wire[content] - work.second[content]
            if operation == SPARSE_PULL:
                out.wire_bytes[message] = pulled_bytes(domain, variable, work.wire[content])
            out.ready[message] = work.ready[content] if stage == 0 else -1
            out.after[message] = work.last[content] if stage > 0 else -1
            out.gate[message] = work.gate[content] if people.overlap[index] else -1
            out.content[message] = base + content
            work.last[content] = message - out.first[index]
            message += 1
    return message


def compile_loop(
    domain: DomainArrays,
    people: PopulationArrays,
    ring_base: int,
    out: PlanArrays,
    work: Scratch,
) -> None:
    """Fill `out` for every strategy; its `first` and `content_first` tell how far."""
    base = 0
    message = 0
    out.first[0] = 0
    out.content_first[0] = 0
    for index in range(len(people.order)):
        contents = cut_contents(domain, people, index, out, work, base, out.content_first[base])
        first_half_order(domain, people, index, work, contents)
        for position in range(contents):
            message = emit(
                domain,
                people,
                index,
                out,
                work,
                base,
                message,
                work.order[position],
                False,
                ring_base,
            )
        second_half_order(domain, people, index, work, contents)
        for position in range(contents):
            message = emit(
                domain,
                people,
                index,
                out,
                work,
                base,
                message,
                work.order[position],
                True,
                ring_base,
            )
        out.first[index + 1] = message
        base += contents
    out.first[len(people.order)] = message
