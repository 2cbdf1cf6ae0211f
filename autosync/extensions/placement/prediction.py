"""What placed modules change in a prediction: who computes what and when, what is dealt, and the
memory of each rank.

Every deal is a collective within the script's own passes, so all ranks wait for the slowest: a
placed module takes as long as the slowest of its ranks. Seconds are stated so that the slowest
replica, which the timeline plays, takes them. Two things are not predicted: deals share links with
gradients that travel meanwhile, and ranks update only the variables that they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from autosync.cluster import Cluster, MessageKind
from autosync.domain import Domain
from autosync.extensions.placement.document import (
    PlacedModule,
    PlacedModules,
    Placement,
    modules_of,
)
from autosync.extensions.placement.module_borders import (
    borders_of,
    data_bytes,
    deals_of,
    moved_shares,
)
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.profiling import reach_variables
from autosync.simulator.backends.message_edges import Edges
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.edge_costs import startup_seconds
from autosync.simulator.cost.link_resources import (
    Resources,
    connection_seconds,
    load_of,
    resources_of,
)
from autosync.simulator.extension_prediction import Prediction, Rows
from autosync.simulator.memory.live_tensors import activation_curve, most_living, storages_of
from autosync.simulator.memory.peak_memory import DomainMemory
from autosync.simulator.memory.plan_memory import PlanMemory
from autosync.strategy import Replica, Strategy

F64 = NDArray[np.float64]

OF_MODULES = 2
"""First row of an activation curve that holds a placed module's activations."""


MAX_ACCOUNTS = 8
"""Placed modules of which an explanation says what they change."""


class PlacementPrediction(Prediction):
    restates_domains = True

    def restated(self, domain: Domain, population: Population, index: int) -> Domain:
        placement = population.entry(index, Placement)
        assert placement is not None
        layout = population.layouts[population.layout[index]]
        return domain_with_placement(domain, layout, placement.modules)

    def peak_bytes(
        self,
        memory: DomainMemory,
        plans: PlanTable,
        population: Population,
        rows: Rows,
        batch_scale: float,
        found: F64,
    ) -> F64:
        """Ranks hold the variables of the modules that are placed on them, and the activations of
        the samples that they compute there."""
        part = PlanMemory(memory.domain, plans, population)
        held, kept = part.held_bytes(), part.gradients_beside_buffers()
        until_next = part.gradients_until_the_next()
        shares, peaks = part.shares(), np.empty_like(found)
        for place, row in enumerate(rows):
            placement = population.entry(row, Placement)
            assert placement is not None
            of_row = shares[population.layout[row]]
            gradients = kept[[row]], until_next[[row]]
            own = _peaks_without_plans(memory, placement.modules, of_row, gradients, batch_scale)
            peaks[place] = own + held[row]
        return peaks

    def account(self, domain: Domain, strategy: Strategy) -> list[str]:
        accounts = placement_accounts(domain, strategy)
        words = [each.in_words(domain.world_size) for each in accounts[:MAX_ACCOUNTS]]
        more = len(accounts) - MAX_ACCOUNTS
        return [*words, f"{more} smaller modules are placed, too"] if more > 0 else words


PREDICTION = PlacementPrediction()


def domain_with_placement(
    domain: Domain, layout: Sequence[Replica], placement: PlacedModules
) -> Domain:
    """layout: of the replicas. Compute seconds of placed modules are those of their ranks, and the
    deals are added to the operations at their borders."""
    slowest = float(compute_factors(domain, tuple(layout)).max())
    forward = np.array(domain.profile.forward_seconds)
    backward = np.array(domain.profile.backward_seconds)
    trained = reach_variables(domain.graph)
    replicas = _shares_of_ranks(domain.world_size, layout)
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


def _shares_of_ranks(world_size: int, layout: Sequence[Replica]) -> F64:
    shares = np.zeros(world_size)
    shares[[replica.rank for replica in layout]] = [replica.share for replica in layout]
    return shares


def _stretch(
    domain: Domain, placed: PlacedModule, slowest: float, forward: F64, backward: F64
) -> None:
    operations = list(borders_of(domain.graph, placed.module).operations)
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
    for deal in deals_of(domain.graph, borders_of(domain.graph, placed.module), trained):
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


def _peaks_without_plans(
    memory: DomainMemory,
    modules: PlacedModules,
    shares: F64,
    beside_buffers: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    batch_scale: float,
) -> F64:
    """`(world,)`, without what `PlanMemory` counts.

    shares: of the ranks, over the even one. beside_buffers: `kept` and `until_next` of
    `DomainMemory.lasting_gradients`, `(1, V)` each.
    """
    domain, sizes, world = memory.domain, memory.domain.variables.size_bytes, len(shares)
    # each module's activations with batch dimension have a row of the curve of their own
    rows = [int(operation.has_batch_dimension) for operation in domain.graph.operations]
    held = np.ones((world, len(sizes)), dtype=np.bool_)
    computed = np.zeros((world, len(modules)))
    for number, placed in enumerate(modules):
        borders = borders_of(domain.graph, placed.module)
        for index in borders.operations:
            if rows[index]:
                rows[index] = OF_MODULES + number
        absent = [rank for rank in range(world) if rank not in placed.ranks]
        held[np.ix_(absent, borders.variables)] = False
        computed[list(placed.ranks), number] = np.multiply(placed.shares, world)
    curve = activation_curve(domain.graph, memory.on_gpu, tuple(rows))
    dealt = batch_scale * dealt_bytes(domain, modules, shares, memory.on_gpu)
    copies = np.where(domain.variables.sparse, 1.0, 2.0) + domain.optimizer.state_tensors
    found = np.empty(world)
    for rank in range(world):
        gradients = np.where(held[rank], memory.gradient_bytes, 0.0)
        batches = np.concatenate((shares[[rank]], computed[rank]))
        of_batch = batches[: len(curve.held) - 1] @ curve.held[1:]
        own = replace(curve, held=np.stack((curve.held[0], of_batch)))
        always, added_up, kept = memory.lasting_gradients(*beside_buffers, gradients)
        living = float(most_living(own, gradients, kept, batch_scale)[0] + added_up[0, 0])
        step = float(gradients[kept[0]].sum()) + memory.step_bytes()
        absent_bytes = float((copies * sizes)[~held[rank]].sum())
        held_bytes = domain.graph.values_bytes - absent_bytes + float(always[0, 0])
        found[rank] = held_bytes + max(living + dealt[rank], step)
    return found


def dealt_bytes(domain: Domain, modules: PlacedModules, replicas: F64, on_gpu: bool) -> F64:
    """`(world,)`: what a rank keeps until backward beside what the activation curve counts, since a
    deal writes its samples to a new tensor, those that stay on their rank as well.

    replicas: each rank's share of the batch over the even one, `(world,)`. on_gpu: as `storages_of`
    has it.
    """
    graph = domain.graph
    storages = storages_of(graph, reach_variables(graph), on_gpu)
    keepers: list[set[int]] = [set() for _ in graph.operations]
    for index, kept in enumerate(storages.keeps):
        for root in kept:
            keepers[root].add(index)
    dealt = np.zeros(domain.world_size)
    for placed in modules:
        borders = borders_of(graph, placed.module)
        inside, own = set(borders.operations), np.zeros(domain.world_size)
        own[list(placed.ranks)] = np.multiply(placed.shares, domain.world_size)
        for source in sorted({source for source, _ in borders.entering}):
            size = graph.operations[source].output_bytes
            keeping = keepers[storages.root[source]]
            dealt += _added(size, own, replicas, keeping & inside, keeping - inside)
        for index in borders.leaving:
            size = graph.operations[index].output_bytes
            keeping = keepers[storages.root[index]]
            dealt += _added(size, replicas, own, keeping - inside, keeping & inside)
        # the script's own batch is not in the curve, and stays
        dealt += own * sum(data_bytes(graph, index) for index in borders.from_data)
    return dealt


def _added(
    size_bytes: float, copied: F64, before: F64, of_copy: set[int], of_original: set[int]
) -> F64:
    """What a deal adds to a value that the curve counts before it, `(world,)`.

    copied, before: each rank's share of the batch behind the deal and before it. of_copy,
    of_original: operations that keep the one or the other. Where none keeps the original, its copy
    stands in its place; that a rank keeps less then is left out, since not all moments have it.
    """
    if not of_copy:
        return np.zeros(len(copied))
    more: F64 = copied if of_original else np.maximum(copied - before, 0.0)
    return size_bytes * more


@dataclass(frozen=True, slots=True)
class PlacedAccount:
    """variable_bytes: of the module's values.

    unsent_bytes: of gradients, an iteration and over all links: a ring all-reduce of B bytes among
    n ranks sends 2 (n - 1) B (Patarasu and Yuan 2009), which the module's own ranks alone now do.
    dealt_bytes: of samples and their gradients that go from one rank to another, an iteration.
    """

    placed: PlacedModule
    variable_bytes: int
    unsent_bytes: int
    dealt_bytes: int

    def in_words(self, world_size: int) -> str:
        unsent = f"{_size(self.unsent_bytes)} of gradients no longer travel, "
        return (
            f"{self.placed.module} ({_size(self.variable_bytes)} of variables) on "
            f"{self.placed.place(world_size)}: {unsent if self.unsent_bytes else ''}"
            f"{_size(self.dealt_bytes)} of samples and their gradients are dealt an iteration"
        )


def placement_accounts(domain: Domain, strategy: Strategy) -> list[PlacedAccount]:
    """Of each placed module, those with the most bytes first."""
    world = domain.world_size
    replicas = _shares_of_ranks(world, strategy.replicas)
    trained = reach_variables(domain.graph)
    accounts = []
    for placed in modules_of(strategy):
        borders = borders_of(domain.graph, placed.module)
        there, back = _divisions(placed, replicas)
        moved = {True: moved_shares(*there), False: moved_shares(*back)}
        dealt = sum(
            float(moved[deal.inward].sum() - np.trace(moved[deal.inward])) * deal.size_bytes * world
            for deal in deals_of(domain.graph, borders, trained)
        )
        size = sum(domain.graph.variables[index].size_bytes for index in borders.variables)
        unsent = 2 * (world - len(placed.ranks)) * size
        accounts.append(PlacedAccount(placed, size, unsent, round(dealt)))
    return sorted(accounts, key=lambda each: -each.variable_bytes)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:,.1f} kB"
