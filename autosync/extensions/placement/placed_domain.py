"""A domain as a strategy with placed modules computes it: who computes what, and what is dealt.

Every deal is a collective within the script's own passes, so ranks go on together from one to the
next: a placed module takes as long as the slowest of its ranks, whoever else waits for it. Seconds
are stated so that the slowest replica, which the timeline plays, takes them. Not known here: that
deals share links with gradients that travel meanwhile; and updates are counted as if one rank held
all variables.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageKind
from autosync.domain import Domain
from autosync.extensions.placement.module_borders import deals_of, moved_shares
from autosync.extensions.placement.placed_module import PlacedModule, Placement
from autosync.population import Population
from autosync.profiling import reach_variables
from autosync.simulator.backends.message_edges import Edges
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.link_resources import (
    Resources,
    connection_seconds,
    load_of,
    resources_of,
)
from autosync.simulator.cost.network import startup_seconds
from autosync.strategy import Replica

F64 = NDArray[np.float64]


def restated_domain(domain: Domain, population: Population, index: int) -> Domain:
    """The domain for strategy `index`; itself where nothing is placed."""
    placement = population.placements[population.placement[index]]
    if not placement:
        return domain
    return domain_with_placement(domain, population.layouts[population.layout[index]], placement)


def domain_with_placement(
    domain: Domain, layout: Sequence[Replica], placement: Placement
) -> Domain:
    """layout: of the replicas. Compute seconds of placed modules are those of their ranks, and the
    deals are added to the operations at their borders."""
    slowest = float(compute_factors(domain, tuple(layout)).max())
    forward = np.array(domain.profile.forward_seconds)
    backward = np.array(domain.profile.backward_seconds)
    trained = reach_variables(domain.graph)
    replicas = np.zeros(domain.world_size)
    for replica in layout:
        replicas[replica.rank] = replica.share
    where = resources_of(domain.cluster)
    for placed in placement:
        _stretch(domain, placed, slowest, forward, backward)
        _add_deals(domain, placed, where, replicas, slowest, trained, forward, backward)
    profile = replace(
        domain.profile,
        forward_seconds=tuple(forward.tolist()),
        backward_seconds=tuple(backward.tolist()),
        note=f"{domain.profile.note}; {len(placement)} modules placed",
    )
    return replace(domain, profile=profile)


def _stretch(
    domain: Domain, placed: PlacedModule, slowest: float, forward: F64, backward: F64
) -> None:
    operations = list(domain.borders.of(placed.module).operations)
    devices = domain.cluster.device_of_rank()
    own = max(
        share * domain.world_size * domain.profile.factor_on(devices[rank])
        for rank, share in zip(placed.ranks, placed.shares, strict=True)
    )
    forward[operations] *= own / slowest
    backward[operations] *= own / slowest


def _add_deals(
    domain: Domain,
    placed: PlacedModule,
    where: Resources,
    replicas: F64,
    slowest: float,
    trained: list[bool],
    forward: F64,
    backward: F64,
) -> None:
    cluster = domain.cluster
    there, back = (partial(deal_seconds, cluster, where, *e) for e in _divisions(placed, replicas))
    reports = _startup_seconds(cluster, "all_gather")
    batch = float(domain.world_size)  # the graph's bytes are one replica's
    for deal in deals_of(domain.graph, domain.borders.of(placed.module), trained):
        seconds = (there if deal.inward else back)(deal.size_bytes * batch)
        passed = backward if deal.is_backward else forward
        passed[deal.operation] += (seconds + reports * deal.counted) / slowest


def _divisions(placed: PlacedModule, replicas: F64) -> tuple[tuple[F64, F64], tuple[F64, F64]]:
    """Shares of all ranks, before and after a deal: to the module, and back."""
    own = np.zeros(len(replicas))
    own[list(placed.ranks)] = placed.shares
    return (replicas, own), (own, replicas)


def deal_seconds(
    cluster: Cluster, where: Resources, source: F64, target: F64, size_bytes: float
) -> float:
    """Of an all-to-all that turns the division `source` of a batch into `target`, `(world,)` shares
    each. size_bytes: of the whole batch."""
    moved = moved_shares(source, target) * size_bytes
    np.fill_diagonal(moved, 0.0)
    sender, receiver = np.nonzero(moved)
    edges = Edges(sender, receiver, moved[sender, receiver], 0.0, 1.0)
    on_links = float(load_of(edges, where).max())
    seconds = max(on_links, connection_seconds(cluster, edges, where))
    copies = cluster.cost("all_to_all").seconds_per_byte * float(moved.sum(axis=1).max())
    return seconds + copies + _startup_seconds(cluster, "all_to_all")


def _startup_seconds(cluster: Cluster, kind: MessageKind) -> float:
    """Of one step among all ranks."""
    latency = float(cluster.latency_seconds().max())
    return startup_seconds(cluster, kind, cluster.world_size, latency)
