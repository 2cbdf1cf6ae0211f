"""Hand-designed strategies: torch's DDP, and what published systems do.

A design is a function of the domain; `design_table` lists all of them.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports.ddp import ddp_buckets
from autosync.graph import Variable
from autosync.search.designs.building_blocks import (
    MAX_PARTS,
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
    owned_by,
    returning_gradients,
    uncut,
)
from autosync.search.domain_facts import factor_costs, owner_links
from autosync.strategy import (
    AllReduce,
    Partition,
    ReduceScatter,
    Schedule,
    Strategy,
    VariableChoice,
    even_replicas,
    split,
    whole,
)
from autosync.torch_engine import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.units import MIB

OVERLAPPED = Schedule("priority", overlap_forward=True)
AT_ONCE = replace(OVERLAPPED, gather="when_idle")
SLICED = Schedule("priority", slice_bytes=4 * MIB, overlap_forward=True)
SCATTER_BYTES = 25 * MIB
"""Of messages that are reduce-scattered and all-gathered: DeAR's default buffer."""


def ddp(domain: Domain) -> Strategy:
    """torch's DistributedDataParallel with its own buckets."""
    own = (DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES)
    return ddp_of_limits(domain, own, Schedule("ddp", slice_bytes=DDP_BUCKET_BYTES))


def ddp_of_limits(domain: Domain, limits_bytes: Sequence[int], schedule: Schedule) -> Strategy:
    """torch's DDP with other sizes of its buckets. limits_bytes: as for `ddp_buckets`. schedule: of
    order `ddp`, with the same sizes."""
    buckets = ddp_buckets(domain.graph, limits_bytes)
    group = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    return Strategy(
        tuple(
            VariableChoice(variable.name, uncut(variable), (AllReduce(group[index]),))
            for index, variable in enumerate(domain.graph.variables)
        ),
        even_replicas(domain.world_size),
        schedule,
    ).canonical()


def all_reduce_per_variable(domain: Domain) -> Strategy:
    """One all-reduce a variable, as gradients become ready."""
    return assemble(domain, collective(domain, AllReduce(0)))


def all_reduce_one_bucket(domain: Domain) -> Strategy:
    """One all-reduce of all gradients, after backward."""
    return all_reduce_fused(domain, 1 << 62)


def all_reduce_5mb(domain: Domain) -> Strategy:
    """All-reduces of groups of 5 MiB."""
    return all_reduce_fused(domain, 5 * MIB)


def all_reduce_25mb(domain: Domain) -> Strategy:
    """All-reduces of groups of 25 MiB."""
    return all_reduce_fused(domain, 25 * MIB)


def all_reduce_fused(domain: Domain, buffer_bytes: int) -> Strategy:
    """All-reduces of groups that fill a buffer."""
    return assemble(domain, collective(domain, AllReduce(0)), limit_bytes=buffer_bytes)


def all_reduce_chunk128(domain: Domain) -> Strategy:
    """All-reduces of groups of 128 variables (AutoDist's AllReduce)."""
    return assemble(domain, collective(domain, AllReduce(0)), limit_shards=128)


def tree_all_reduce(domain: Domain) -> Strategy:
    """Tree all-reduces of groups of 25 MiB."""
    return assemble(domain, collective(domain, AllReduce(0, "tree")), limit_bytes=25 * MIB)


def hierarchical_all_reduce(domain: Domain) -> Strategy:
    """Reduced in each node, all-reduced between nodes, in groups of 25 MiB."""
    choices = collective(domain, AllReduce(0, "hierarchical"))
    return assemble(domain, choices, limit_bytes=25 * MIB)


def priority_sliced(domain: Domain) -> Strategy:
    """All-reduces in 4 MiB slices, front layers first, during the next forward pass."""
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, schedule=SLICED, limit_bytes=25 * MIB)


def hierarchical_sliced(domain: Domain) -> Strategy:
    """Hierarchical all-reduces in slices, front layers first."""
    choices = collective(domain, AllReduce(0, "hierarchical"))
    return assemble(domain, choices, schedule=SLICED, limit_bytes=25 * MIB)


def partitioned_all_reduce(domain: Domain) -> Strategy:
    """Axis 0 cut by its smallest divisor, all-reduced (AutoDist's PartitionedAR)."""
    return assemble(domain, collective(domain, AllReduce(0), by_divisor), limit_shards=128)


def random_axis_partition_ar(domain: Domain, seed: int = 0) -> Strategy:
    """A random axis cut by its smallest divisor, all-reduced (AutoDist's RandomAxisPartitionAR)."""
    rng = random.Random(seed)

    def cut(variable: Variable) -> Partition:
        axes = [axis for axis, size in enumerate(variable.shape) if size > 1]
        if not axes:
            return whole(variable.shape)
        axis = rng.choice(axes)
        size = variable.shape[axis]
        parts = next((p for p in range(2, min(size, MAX_PARTS) + 1) if size % p == 0), 1)
        return split(variable.shape, axis, parts)

    return assemble(domain, collective(domain, AllReduce(0), cut), limit_shards=128)


def reduce_scatter_25mb(domain: Domain) -> Strategy:
    """Reduce-scatter and all-gather in groups of 25 MiB, during backward."""
    return scattered(domain, collective(domain, ReduceScatter(0)))


def dear(domain: Domain) -> Strategy:
    """Reduce-scatter in backward, all-gather during the next forward pass, 25 MiB (DeAR)."""
    return dear_fused(domain, SCATTER_BYTES)


def dear_fused(domain: Domain, buffer_bytes: int) -> Strategy:
    """DeAR with a fusion buffer of another size."""
    choices = collective(domain, ReduceScatter(0))
    return scattered(domain, choices, Schedule("fifo", overlap_forward=True), buffer_bytes)


def dear_sliced(domain: Domain) -> Strategy:
    """DeAR in 4 MiB slices, front layers first."""
    return scattered(domain, collective(domain, ReduceScatter(0)), SLICED)


def dear_idle(domain: Domain) -> Strategy:
    """`dear_sliced` whose all-gathers also start in backward, while the link is idle."""
    schedule = replace(SLICED, gather="when_idle")
    return scattered(domain, collective(domain, ReduceScatter(0)), schedule)


def zero1(domain: Domain) -> Strategy:
    """Reduce-scatter, each replica updates its part, all-gather of values (ZeRO-1)."""
    return scattered(domain, collective(domain, ReduceScatter(0, sharded_update=True)))


def zero1_overlap(domain: Domain) -> Strategy:
    """ZeRO-1 whose all-gather continues during the next forward pass, front layers first."""
    return scattered(domain, collective(domain, ReduceScatter(0, sharded_update=True)), OVERLAPPED)


def scattered(
    domain: Domain,
    choices: Choices,
    schedule: Schedule | None = None,
    limit_bytes: int = SCATTER_BYTES,
) -> Strategy:
    """Reduce-scattered and all-gathered messages, without a tiny last one."""
    return assemble(domain, choices, schedule=schedule, limit_bytes=limit_bytes, fold_tails=True)


def ps_one_server(domain: Domain) -> Strategy:
    """The first rank owns every variable (AutoDist's PS)."""
    whole_variables = {i: uncut(variable) for i, variable in enumerate(domain.graph.variables)}
    return assemble(domain, owned_by(domain, whole_variables, dict.fromkeys(whole_variables, (0,))))


def ps_load_balanced(domain: Domain) -> Strategy:
    """Whole variables, each to the owner with the fewest bytes (AutoDist's PSLoadBalancing)."""
    return assemble(domain, owned(domain, everything(domain)))


def ps_partitioned(domain: Domain) -> Strategy:
    """Axis 0 cut by its smallest divisor, fewest bytes first (AutoDist's PartitionedPS)."""
    return assemble(domain, owned(domain, everything(domain), by_divisor))


def ps_uneven_partitioned(domain: Domain) -> Strategy:
    """Axis 0 cut by its smallest non-divisor (AutoDist's UnevenPartitionedPS)."""
    return assemble(domain, owned(domain, everything(domain), by_non_divisor))


def ps_bandwidth_weighted(domain: Domain) -> Strategy:
    """4 MiB pieces owned in proportion to bandwidth, merged by owner."""
    return assemble(domain, _balanced(domain), schedule=OVERLAPPED, limit_bytes=5 * MIB)


def ps_pieces_4mb_priority(domain: Domain) -> Strategy:
    """4 MiB pieces owned in proportion to bandwidth, front layers first (ByteScheduler)."""
    return assemble(domain, _balanced(domain), schedule=OVERLAPPED)


def ps_least_busy_link(domain: Domain) -> Strategy:
    """4 MiB pieces on the owners of `least_busy_link`, merged by owner."""
    return assemble(domain, least_busy_link(domain), schedule=OVERLAPPED, limit_bytes=5 * MIB)


def hierarchical_ps(domain: Domain) -> Strategy:
    """4 MiB pieces, summed in each node before they travel to the owner."""
    choices = _balanced(domain, hierarchical=True)
    return assemble(domain, choices, schedule=OVERLAPPED, limit_bytes=5 * MIB)


def byteps(domain: Domain) -> Strategy:
    """4 MiB pieces whose owners return average gradients at once (BytePS)."""
    return assemble(domain, returning_gradients(domain, _balanced(domain)), schedule=AT_ONCE)


def byteps_least_busy_link(domain: Domain) -> Strategy:
    """BytePS on the owners of `least_busy_link`."""
    choices = returning_gradients(domain, least_busy_link(domain))
    return assemble(domain, choices, schedule=AT_ONCE, limit_bytes=5 * MIB)


def parallax(domain: Domain) -> Strategy:
    """Sparse gradients to owners, dense ones all-reduced (Parallax)."""
    sparse = sorted(set(everything(domain)) - set(dense(domain)))
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, owned(domain, sparse), limit_bytes=25 * MIB)


def poseidon(domain: Domain) -> Strategy:
    """Factors where Poseidon's rule prefers them, else owners of 2 MiB pieces, as large as the
    pairs of Poseidon's key-value store."""
    named = [index for index in everything(domain) if _poseidon_prefers_factors(domain, index)]
    rest = [index for index in everything(domain) if index not in set(named)]
    return assemble(domain, owned(domain, rest, into_pieces(2 * MIB)), factored(domain, named))


def factors_all_reduce(domain: Domain) -> Strategy:
    """Factors where they are fewer bytes, else sliced all-reduces."""
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, cheap_factors(domain), schedule=SLICED, limit_bytes=25 * MIB)


def factors_dear(domain: Domain) -> Strategy:
    """Factors where they are fewer bytes, else DeAR."""
    choices = collective(domain, ReduceScatter(0))
    return assemble(
        domain, choices, cheap_factors(domain), schedule=OVERLAPPED, limit_bytes=25 * MIB
    )


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


def least_busy_link(domain: Domain) -> Choices:
    """Owners of 4 MiB pieces. The largest pieces first, each to the rank that leaves the busiest
    link least busy; of equal ranks to the one with the least sum of squares.

    In proportion to bandwidth a slow node owns less, but it sends and fetches all that it does not
    own, as every node does: with P nodes, a share x holds a link of rate b for (1 + (P - 2) x) / b.
    So the slowest node may best own nothing.
    """
    links, sparse_of = owner_links(domain), domain.variables.sparse
    cut = into_pieces(4 * MIB)
    partitions = {index: cut(domain.graph.variables[index]) for index in everything(domain)}
    pieces = [
        (length / sum(partition.lengths), index, part)
        for index, partition in partitions.items()
        for part, length in enumerate(partition.lengths)
    ]
    pieces.sort(key=lambda piece: (-piece[0] * links.sent[piece[1]], piece[1:]))
    shared, own = np.zeros(links.push.shape[2]), np.zeros(len(links.kind))
    owners = {index: [0] * len(partition.lengths) for index, partition in partitions.items()}
    for share, index, part in pieces:
        sparse, kind = int(sparse_of[index]), links.kind
        sent, pulled = share * links.sent[index], share * links.pulled[index]
        after = shared + sent * links.push[sparse] + pulled * links.pull[sparse]
        mine = own + (sent * links.own_push[sparse] + pulled * links.own_pull[sparse])[kind]
        busiest = np.maximum(after.max(axis=1)[kind], np.maximum(mine, most_of_others(own)))
        best = np.flatnonzero(busiest <= busiest.min() * (1 + 1e-9))
        squares = (after**2).sum(axis=1)[kind] + mine**2 - own**2
        owner = int(best[np.argmin(squares[best])])
        owners[index][part] = owner
        shared, own[owner] = after[kind[owner]], mine[owner]
    return owned_by(domain, partitions, owners)


def most_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest of all values but each one's own, `(n,)`."""
    first = int(values.argmax())
    most = np.full(len(values), values[first])
    most[first] = np.delete(values, first).max(initial=0.0)
    return most


def _balanced(domain: Domain, hierarchical: bool = False) -> Choices:
    """Owners of 4 MiB pieces in proportion to bandwidth."""
    cut = into_pieces(4 * MIB)
    return owned(domain, everything(domain), cut, by_bandwidth=True, hierarchical=hierarchical)


def _poseidon_prefers_factors(domain: Domain, index: int) -> bool:
    """2K(P1-1)(M+N) < 2MN(P1+P2-2)/P2, every worker being a server (Poseidon, algorithm 2)."""
    variable, factor_rows = domain.graph.variables[index], domain.variables.factor_rows[index]
    if not factor_rows:
        return False
    workers = servers = domain.world_size
    rows, columns = variable.shape[0], variable.elements // variable.shape[0]
    by_factors = 2 * int(factor_rows) * (workers - 1) * (rows + columns)
    return by_factors < 2 * rows * columns * (workers + servers - 2) / servers
