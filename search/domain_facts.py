"""Facts of a domain that both sampled and hand-designed strategies use."""

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.domain import Domain
from autosync.plan.bucket_cutting import INDEX_BYTES
from autosync.plan.plan_table import ALL_RANKS, team_table
from autosync.search.space import Space
from autosync.simulator.cost.network import network_of
from autosync.strategy import (
    AllGather,
    AllReduce,
    Replica,
    Strategy,
    VariableChoice,
    even_replicas,
    whole,
)
from autosync.verification import verify


def server_weights(domain: Domain) -> NDArray[np.float64]:
    """A `(ranks,)` array adding up to 1: a node's NIC bandwidth, shared by its ranks."""
    cluster = domain.cluster
    node = cluster.node_of_server()[: domain.world_size]
    ranks = np.array([max(1, n.ranks) for n in cluster.nodes])
    share = (cluster.nic_bytes_per_second() / ranks)[node]
    weights: NDArray[np.float64] = share / share.sum()
    return weights


def sent_bytes(domain: Domain) -> NDArray[np.float64]:
    """Bytes that one replica sends for each variable, `(variables,)`: for sparse ones the touched
    rows with their indices."""
    table = domain.variables
    rows = table.dims[:, 0]
    touched = np.minimum(table.touched_rows, rows)
    row_bytes = table.size_bytes / rows + INDEX_BYTES
    return np.where(table.sparse, touched * row_bytes, table.size_bytes).astype(np.float64)


def pulled_bytes(domain: Domain) -> NDArray[np.float64]:
    """Bytes that one replica fetches from an owner for each variable, `(variables,)`: for sparse
    ones the rows that any replica touched."""
    table, sent = domain.variables, sent_bytes(domain)
    touched = np.minimum(sent * domain.world_size, table.size_bytes)
    return np.where(table.sparse, touched, sent).astype(np.float64)


class OwnerLinks(NamedTuple):
    """For how long a byte of a variable keeps links busy, by its owner: one of S, which are of G
    kinds. They share L links, and each has a link of its own besides.

    kind i64[S]: of each owner. push, pull f64[2, G, L], own_push, own_pull f64[2, G]: link seconds
    of a byte sent to an owner by all others, and fetched from it by them; of dense variables and of
    sparse ones. sent, pulled f64[V]: bytes of a whole variable.
    """

    kind: NDArray[np.int64]
    push: NDArray[np.float64]
    pull: NDArray[np.float64]
    own_push: NDArray[np.float64]
    own_pull: NDArray[np.float64]
    sent: NDArray[np.float64]
    pulled: NDArray[np.float64]


@lru_cache(maxsize=8)
def owner_links(domain: Domain) -> OwnerLinks:
    network = network_of(domain.cluster, team_table(domain, ()))
    operations = (Op.PUSH, Op.SPARSE_PUSH, Op.PULL, Op.SPARSE_PULL)
    loads = [network.owner_loads(each, ALL_RANKS, domain.world_size) for each in operations]
    shared, own = np.array([each.shared for each in loads]), np.array([each.own for each in loads])
    return OwnerLinks(
        loads[0].kind, shared[:2], shared[2:], own[:2], own[2:], sent_bytes(domain),
        pulled_bytes(domain),
    )  # fmt: skip


def rank_speeds(domain: Domain) -> tuple[float, ...]:
    """Speed of each rank's device, relative to the profile's."""
    return tuple(1.0 / domain.profile.factor_on(each) for each in domain.cluster.device_of_rank())


def replica_layouts(domain: Domain, space: Space) -> tuple[tuple[Replica, ...], ...]:
    """Even shares; with `space.uneven_shares` also shares proportional to the devices' speed.

    Shares are whole samples of the global batch (HeteroG's proportional allocation).
    """
    even = even_replicas(domain.world_size)
    if not space.uneven_shares:
        return (even,)
    speed = np.array(rank_speeds(domain))
    batch = domain.batch_size * domain.world_size
    exact = speed / speed.sum() * batch
    samples = np.maximum(np.floor(exact), 1).astype(np.int64)
    behind = np.argsort(samples - exact, kind="stable")
    samples[behind[: max(0, batch - int(samples.sum()))]] += 1
    if samples.sum() != batch or len(set(samples.tolist())) == 1:
        return (even,)
    return even, tuple(Replica(rank, int(n) / batch) for rank, n in enumerate(samples))


def check_pins(domain: Domain, space: Space) -> None:
    """Raises InvalidStrategy where no strategy of the domain can have the pinned choices."""
    if not space.pins:
        return
    pins = {pin.variable: pin for pin in space.pins}
    free = 1 + max(shard.group for pin in space.pins for shard in pin.shards)
    others = (
        VariableChoice(
            variable.name,
            whole(variable.shape),
            (AllGather(group) if variable.sparse else AllReduce(group),),
        )
        for group, variable in enumerate(domain.graph.variables, free)
    )
    choices = tuple(pins.get(other.variable, other) for other in others)
    verify(Strategy(choices, even_replicas(domain.world_size)), domain, allow_lossy=True)


RING_ORDERS = 8
"""Most orders of a ring to draw from."""
EXCHANGES = 100_000
"""Of two nodes, tried for all orders together: some seconds. Once through all pairs of 30 nodes,
for the 32 orders that are begun, are 14,000; those of hundreds of nodes would take minutes."""


def ring_orders(domain: Domain) -> tuple[tuple[int, ...], ...]:
    """Orders of the ranks along a ring that are worth a try, those of the fastest slowest link
    first; none unless some link between nodes has a rate of its own.

    A node's ranks stay together. Found by exchanging nodes of random orders. Without such links
    all orders of nodes are alike. NCCL picks its own.
    """
    cluster = domain.cluster
    if not cluster.links or cluster.backend == "nccl":
        return ()
    node = cluster.node_of_server()[: domain.world_size]
    nodes, rates = np.unique(node), cluster.bandwidth_bytes_per_second()
    rng = np.random.default_rng(0)
    found: dict[tuple[int, ...], tuple[float, ...]] = {}
    left = EXCHANGES
    for _ in range(4 * RING_ORDERS):
        order, left = _exchanged(rng.permutation(nodes), rates, left)
        turned = np.roll(order, -int(np.argmin(order)))
        ranks = tuple(int(rank) for each in turned for rank in np.flatnonzero(node == each))
        found[ranks] = tuple(-rate for rate in _ring_rates(order, rates))
        if not left:
            break
    found.pop(tuple(range(domain.world_size)), None)  # an empty order is that one
    return tuple(sorted(found, key=lambda ranks: (found[ranks], ranks))[:RING_ORDERS])


def _ring_rates(order: NDArray[np.int16], rates: NDArray[np.float64]) -> tuple[float, ...]:
    """Rates of the links of a ring, the slowest first."""
    return tuple(np.sort(rates[order, np.roll(order, -1)]).tolist())


def _exchanged(
    order: NDArray[np.int16], rates: NDArray[np.float64], left: int
) -> tuple[NDArray[np.int16], int]:
    """The order after every exchange of two nodes that makes its slowest links faster, of those
    that are left to try; and how many then are."""
    best, slowest, improved = order, _ring_rates(order, rates), True
    while improved:
        improved = False
        for i, j in combinations(range(len(order)), 2):
            if not left:
                return best, 0
            left -= 1
            other = best.copy()
            other[[i, j]] = other[[j, i]]
            if (found := _ring_rates(other, rates)) > slowest:
                best, slowest, improved = other, found, True
    return best, left


def factor_bytes(domain: Domain) -> NDArray[np.float64]:
    """Bytes of one replica's two factors of each variable, K(M+N) elements, `(variables,)`."""
    table = domain.variables
    rows = table.dims[:, 0]
    size_bytes = table.factor_rows * (rows + table.elements // rows) * table.item_bytes
    return size_bytes.astype(np.float64)


def factor_costs(domain: Domain) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two `(variables,)` arrays: bytes one rank sends for a variable by factors, and by a ring.

    Factors go to each of P-1 others; a ring: 2(P-1)/P MN (Poseidon, table 3.4).
    """
    world = domain.world_size
    ring = 2.0 * (world - 1) / world * domain.variables.size_bytes
    return factor_bytes(domain) * (world - 1.0), ring.astype(np.float64)
