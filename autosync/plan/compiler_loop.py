"""The compiler's main loop: strategy by strategy, buckets, their order, their messages.

Like `compiler_kernels`, in the subset of Python that numba compiles.
"""

from autosync.plan.bucket_cutting import cut_buckets
from autosync.plan.compiler_arrays import DomainArrays, PlanArrays, PopulationArrays, Scratch
from autosync.plan.compiler_kernels import LEAVES_VALUES, O_DDP, SPARSE_PULL, T_ALL, pulled_bytes
from autosync.plan.message_chains import chain, second_half_stage
from autosync.plan.message_order import first_half_order, idle_order, second_half_order


def emit(
    domain: DomainArrays,
    population: PopulationArrays,
    index: int,
    out: PlanArrays,
    work: Scratch,
    base: int,
    message: int,
    bucket: int,
    second_half: bool,
    ring_base: int,
) -> int:
    """Append a half of one bucket's messages from `message` on; returns the next free message."""
    row = work.row[bucket]
    option = population.option[row]
    variable = population.variable[row]
    method = population.method[row]
    encoding = population.encoding[option]
    ring = population.ring[option]
    server = population.server[row]
    stages = work.stages
    count = chain(
        domain,
        method,
        domain.sparse[variable],
        population.order[index] == O_DDP,
        population.algorithm[option],
        ring_base + ring if ring >= 0 else T_ALL,
        population.hierarchical[option],
        population.sharded[option],
        population.returns_gradients[option],
        server,
        work.second[bucket] > 0,
        population.idle_gather[index],
        stages,
    )
    split = second_half_stage(stages, count, population.overlap[index])
    values = False
    for stage in range(count):
        if (stage >= split) == second_half:
            operation = stages[stage, 0]
            values = values or (stage > 0 and stages[stage - 1, 4] in LEAVES_VALUES)
            out.operation[message] = operation
            out.channel[message] = stages[stage, 1]
            out.root[message] = stages[stage, 2]
            out.ranks[message] = stages[stage, 3]
            out.update[message] = stages[stage, 4]
            out.encoding[message] = 0 if values else encoding
            out.carries_values[message] = values
            out.wire_bytes[message] = work.value[bucket] if values else work.wire[bucket]
            if work.second[bucket] > 0:
                out.wire_bytes[message] = work.second[bucket]
                if stage == 0:
                    out.wire_bytes[message] = work.wire[bucket] - work.second[bucket]
            if operation == SPARSE_PULL:
                out.wire_bytes[message] = pulled_bytes(domain, variable, work.wire[bucket])
            out.ready[message] = work.ready[bucket] if stage == 0 else -1
            out.after[message] = work.last[bucket] if stage > 0 else -1
            out.gate[message] = work.gate[bucket] if population.overlap[index] else -1
            out.bucket[message] = base + bucket
            work.last[bucket] = message - out.first[index]
            message += 1
    return message


def compile_loop(
    domain: DomainArrays,
    population: PopulationArrays,
    ring_base: int,
    out: PlanArrays,
    work: Scratch,
) -> None:
    """Fill `out` for every strategy; its `first` and `bucket_first` tell how far."""
    base = 0
    message = 0
    out.first[0] = 0
    out.bucket_first[0] = 0
    for index in range(len(population.order)):
        buckets = cut_buckets(domain, population, index, out, work, base, out.bucket_first[base])
        first_half_order(domain, population, index, work, buckets)
        if population.idle_gather[index]:
            idle_order(domain, population, index, work, buckets)
            for place in range(2 * buckets):
                half = work.halves[place]
                message = emit(
                    domain,
                    population,
                    index,
                    out,
                    work,
                    base,
                    message,
                    half // 2,
                    half % 2 == 1,
                    ring_base,
                )
        else:  # two calls: with the half a constant, the compiled loop is a fifth faster
            for position in range(buckets):
                message = emit(
                    domain,
                    population,
                    index,
                    out,
                    work,
                    base,
                    message,
                    work.order[position],
                    False,
                    ring_base,
                )
            second_half_order(domain, population, index, work, buckets)
            for position in range(buckets):
                message = emit(
                    domain,
                    population,
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
        base += buckets
    out.first[len(population.order)] = message
