"""Hand-designed strategies, one function each: torch's DDP, and what published systems do."""

import random
from dataclasses import replace

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports.ddp import ddp_buckets
from autosync.graph import Variable
from autosync.plan.plan_document import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.search.designs.building_blocks import (
    Choices,
    assemble,
    by_divisor,
    by_non_divisor,
    collective,
    dense,
    everything,
    factored,
    into_pieces,
    owned,
    returning_gradients,
    uncut,
)
from autosync.search.domain_facts import factor_costs
from autosync.strategy import (
    AllReduce,
    ParameterServer,
    Partition,
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.units import MIB

OVERLAPPED = Schedule("priority", overlap_forward=True)
AT_ONCE = replace(OVERLAPPED, gather="when_idle")
HALVES_BYTES = 25 * MIB
"""Of messages in two halves: DeAR's default buffer."""
SLICED = Schedule("priority", slice_bytes=4 * MIB, overlap_forward=True)


def ddp(domain: Domain) -> Strategy:
    buckets = ddp_buckets(domain.graph, (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES))
    group = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    return Strategy(
        tuple(
            VariableChoice(variable.name, uncut(variable), (AllReduce(group[index]),))
            for index, variable in enumerate(domain.graph.variables)
        ),
        even_replicas(domain.world_size),
        Schedule("ddp", slice_bytes=DDP_BUCKET_BYTES),
    ).canonical()


def all_reduce_per_variable(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0)))


def all_reduce_one_bucket(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0)), limit_bytes=1 << 62)


def all_reduce_5mb(domain: Domain) -> Strategy:
    return all_reduce_fused(domain, 5 * MIB)


def all_reduce_25mb(domain: Domain) -> Strategy:
    return all_reduce_fused(domain, 25 * MIB)


def all_reduce_fused(domain: Domain, buffer_bytes: int) -> Strategy:
    """All-reduces fused in a buffer of any size."""
    return assemble(domain, collective(domain, AllReduce(0)), limit_bytes=buffer_bytes)


def all_reduce_chunk128(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0)), limit_shards=128)


def tree_all_reduce(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0, "tree")), limit_bytes=25 * MIB)


def priority_sliced(domain: Domain) -> Strategy:
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, schedule=SLICED, limit_bytes=25 * MIB)


def reduce_scatter_25mb(domain: Domain) -> Strategy:
    return halves(domain, collective(domain, ReduceScatter(0)))


def dear(domain: Domain) -> Strategy:
    return dear_fused(domain, HALVES_BYTES)


def dear_fused(domain: Domain, buffer_bytes: int) -> Strategy:
    """DeAR with a fusion buffer of another size."""
    choices = collective(domain, ReduceScatter(0))
    return halves(domain, choices, Schedule("fifo", overlap_forward=True), buffer_bytes)


def dear_sliced(domain: Domain) -> Strategy:
    return halves(domain, collective(domain, ReduceScatter(0)), SLICED)


def dear_idle(domain: Domain) -> Strategy:
    """No longer DeAR's rule: second halves do not wait for the end of backward."""
    schedule = replace(SLICED, gather="when_idle")
    return halves(domain, collective(domain, ReduceScatter(0)), schedule)


def zero1(domain: Domain) -> Strategy:
    return halves(domain, collective(domain, ReduceScatter(0, sharded_update=True)))


def zero1_overlap(domain: Domain) -> Strategy:
    return halves(domain, collective(domain, ReduceScatter(0, sharded_update=True)), OVERLAPPED)


def halves(
    domain: Domain,
    choices: Choices,
    schedule: Schedule | None = None,
    limit_bytes: int = HALVES_BYTES,
) -> Strategy:
    """Messages that travel in two halves, in groups of 25 MiB without a tiny last one."""
    return assemble(domain, choices, schedule=schedule, limit_bytes=limit_bytes, fold_tails=True)


def ps_one_server(domain: Domain) -> Strategy:
    return assemble(
        domain,
        {
            index: VariableChoice(variable.name, uncut(variable), (ParameterServer(0, 0),))
            for index, variable in enumerate(domain.graph.variables)
        },
    )


def ps_load_balanced(domain: Domain) -> Strategy:
    return assemble(domain, owned(domain, everything(domain)))


def ps_partitioned(domain: Domain) -> Strategy:
    return assemble(domain, owned(domain, everything(domain), by_divisor))


def ps_uneven_partitioned(domain: Domain) -> Strategy:
    return assemble(domain, owned(domain, everything(domain), by_non_divisor))


def ps_bandwidth_weighted(domain: Domain) -> Strategy:
    choices = owned(domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True)
    return assemble(domain, choices, schedule=OVERLAPPED, limit_bytes=5 * MIB)


def ps_pieces_4mb_priority(domain: Domain) -> Strategy:
    choices = owned(domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True)
    return assemble(domain, choices, schedule=OVERLAPPED)


def hierarchical_ps(domain: Domain) -> Strategy:
    choices = owned(
        domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True, hierarchical=True
    )
    return assemble(domain, choices, schedule=OVERLAPPED, limit_bytes=5 * MIB)


def byteps(domain: Domain) -> Strategy:
    choices = owned(domain, everything(domain), into_pieces(4 * MIB), by_bandwidth=True)
    return assemble(domain, returning_gradients(domain, choices), schedule=AT_ONCE)


def hierarchical_all_reduce(domain: Domain) -> Strategy:
    choices = collective(domain, AllReduce(0, "hierarchical"))
    return assemble(domain, choices, limit_bytes=25 * MIB)


def hierarchical_sliced(domain: Domain) -> Strategy:
    choices = collective(domain, AllReduce(0, "hierarchical"))
    return assemble(domain, choices, schedule=SLICED, limit_bytes=25 * MIB)


def parallax(domain: Domain) -> Strategy:
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, owned(domain, sparse(domain)), limit_bytes=25 * MIB)


def poseidon(domain: Domain) -> Strategy:
    """Pairs of 2 MB, as Poseidon's key-value store keeps them."""
    named = [index for index in everything(domain) if _poseidon_prefers_factors(domain, index)]
    rest = [index for index in everything(domain) if index not in set(named)]
    return assemble(domain, owned(domain, rest, into_pieces(2 * MIB)), factored(domain, named))


def factors_all_reduce(domain: Domain) -> Strategy:
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, cheap_factors(domain), schedule=SLICED, limit_bytes=25 * MIB)


def factors_dear(domain: Domain) -> Strategy:
    choices = collective(domain, ReduceScatter(0))
    return assemble(
        domain, choices, cheap_factors(domain), schedule=OVERLAPPED, limit_bytes=25 * MIB
    )


def partitioned_all_reduce(domain: Domain) -> Strategy:
    return assemble(domain, collective(domain, AllReduce(0), by_divisor), limit_shards=128)


def random_axis_partition_ar(domain: Domain, seed: int = 0) -> Strategy:
    rng = random.Random(seed)

    def cut(variable: Variable) -> Partition:
        axes = [axis for axis, size in enumerate(variable.shape) if size > 1]
        if not axes:
            return whole(variable.shape)
        axis = rng.choice(axes)
        size = variable.shape[axis]
        parts = next((p for p in range(2, min(size, 40) + 1) if size % p == 0), 1)
        return split(variable.shape, axis, parts)

    return assemble(domain, collective(domain, AllReduce(0), cut), limit_shards=128)


def sparse(domain: Domain) -> list[int]:
    return sorted(set(everything(domain)) - set(dense(domain)))


def cheap_factors(domain: Domain) -> Choices:
    """Factors wherever they are fewer bytes than a ring all-reduce.

    Raises:
        NotSupported: nowhere, so the strategy would be another one under a false name.
    """
    factors, ring = factor_costs(domain)
    rows = domain.variables.factor_rows
    cheap = [i for i in dense(domain) if rows[i] > 0 and factors[i] < ring[i]]
    if not cheap:
        raise NotSupported(
            "no variable of this graph is cheaper to send by its factors.", thing="factors"
        )
    return factored(domain, cheap)


def _poseidon_prefers_factors(domain: Domain, index: int) -> bool:
    """2K(P1-1)(M+N) < 2MN(P1+P2-2)/P2, every worker being a server (Poseidon, algorithm 2)."""
    variable = domain.graph.variables[index]
    if not variable.factor_rows:
        return False
    workers = servers = domain.world_size
    rows, columns = variable.shape[0], variable.elements // variable.shape[0]
    by_factors = 2 * variable.factor_rows * (workers - 1) * (rows + columns)
    return by_factors < 2 * rows * columns * (workers + servers - 2) / servers
