"""Every device's peak memory under a strategy.

Parameters, gradients, optimizer state and message buffers as the runtime, torch's DDP and its
`fully_shard` allocate them, and the activations that live at each moment.
`benchmarks/peak_memory.py` holds it against what the allocator of the CPU counts. Not known here:
inputs, workspaces of kernels, the allocator's own waste, the context of a GPU.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.codes import POWERSGD, Op, Order, Update
from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.placement import Placement
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.activation_memory import ActivationCurve, activation_curve
from autosync.simulator.placed_memory import placed_holdings
from autosync.simulator.sharded_memory import held_bytes, units_of
from autosync.torch_engine import FullyShard

GATHERS = tuple(int(op) for op in (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER))
PUSHES = tuple(int(op) for op in Op if op.to_owner)
INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class DomainMemory:
    """What the peak of any strategy of a domain is made of; `memory_of` makes it.

    on_gpu: of the replicas' devices. gradient_bytes f64[V]: of one replica's gradient.
    """

    domain: Domain
    on_gpu: bool
    curve: ActivationCurve
    gradient_bytes: NDArray[np.float64]

    def peak_bytes(
        self, plans: PlanTable, population: Population, index: int = 0, batch_scale: float = 1.0
    ) -> NDArray[np.float64]:
        """Peak bytes of every rank under strategy `index` of compiled plans, `(world,)`.

        batch_scale: at so many times the domain's batch size.
        """
        engine = population.engines[population.engine[index]]
        if engine is not None:
            return self._sharded_peaks(population, index, engine, batch_scale)
        part = _Part.of(plans, population, self.domain, index)
        if placement := population.placements[population.placement[index]]:
            return self._placed_peaks(part, placement, batch_scale)
        kept = self._gradients_beside_buffers(part)
        held = state_bytes(part) + buffer_bytes(part) + update_bytes(part)
        during, after = self._moments(kept)
        shares, of_rank = np.unique(part.shares, return_inverse=True)
        compute = np.array(
            [(during[0] + share * batch_scale * during[1]).max() for share in shares]
        )[of_rank]
        step = after + self._step_bytes()
        result: NDArray[np.float64] = (
            self.domain.graph.size_bytes + held + np.maximum(compute, step)
        )
        return result

    def _sharded_peaks(
        self, population: Population, index: int, engine: FullyShard, batch_scale: float
    ) -> NDArray[np.float64]:
        """`(world,)`: ranks under `fully_shard` hold alike."""
        domain = self.domain
        units = units_of(domain, self.curve, population, index, engine)
        moments = self.curve.held.shape[1]
        held = held_bytes(units, moments, domain.cluster.backend == "gloo")
        whole, _ = self._moments(np.ones(len(self.gradient_bytes), dtype=np.bool_))
        living = whole[0] - held.freed + batch_scale * whole[1]
        compute = (living + np.maximum(held.during, held.passing)).max()
        step = held.parts * (1.0 + self._step_bytes() / domain.graph.size_bytes)
        kept = held.parts * (1 + domain.optimizer.state_tensors)
        return np.full(domain.world_size, kept + max(compute, step))

    def _placed_peaks(
        self, part: "_Part", placement: Placement, batch_scale: float
    ) -> NDArray[np.float64]:
        """`(world,)`: ranks hold the variables of the modules that are placed on them, and the
        activations of the samples that they compute there."""
        domain, sizes = self.domain, self.domain.variables.size_bytes
        holdings = placed_holdings(domain, placement, part.shares)
        own = replace(self, curve=activation_curve(domain.graph, self.on_gpu, holdings.rows))
        kept = self._gradients_beside_buffers(part)
        everything = state_bytes(part) + buffer_bytes(part) + update_bytes(part)
        copies = np.where(domain.variables.sparse, 1.0, 2.0) + domain.optimizer.state_tensors
        found = np.empty(domain.world_size)
        for rank, held in enumerate(holdings.held):
            mine = replace(own, gradient_bytes=np.where(held, self.gradient_bytes, 0.0))
            during, after = mine._moments(kept)
            batches = np.concatenate((part.shares[[rank]], holdings.shares[rank]))
            living = during[0] + batch_scale * (batches[: len(during) - 1] @ during[1:])
            absent = float((copies * sizes)[~held].sum())
            step = after + self._step_bytes()
            compute = living.max() + batch_scale * holdings.dealt_bytes[rank]
            found[rank] = domain.graph.size_bytes + everything[rank] - absent + max(compute, step)
        return found

    def most_bytes(self, share: float) -> float:
        """More than any strategy takes on any rank: values, gradients beside buffers, packed forms
        of them, an error fed back, a flat copy; and what every other rank may send of it.

        share: the largest share of the batch, over the even one.
        """
        table, world = self.domain.variables, self.domain.world_size
        activations = (self.curve.held[0] + max(share, 1.0) * self.curve.held[1]).max()
        copies = 7.0 + self.domain.optimizer.state_tensors
        copies += world if self.domain.cluster.backend == "gloo" else 0
        columns = table.elements // table.dims[:, 0]
        factors = table.factor_rows * (table.dims[:, 0] + columns) * table.item_bytes
        gathered = world * float(factors.sum() + self.gradient_bytes[table.sparse].sum())
        return float(copies * table.size_bytes.sum() + gathered + activations)

    def _gradients_beside_buffers(self, part: "_Part") -> NDArray[np.bool_]:
        """`(V,)`: whose gradients live in tensors of their own. A whole variable that lies in one
        bucket has a view of it instead; torch's DDP keeps both."""
        if part.is_ddp:
            return np.ones(len(self.gradient_bytes), dtype=np.bool_)
        split: NDArray[np.bool_] = part.buckets_of_variable != 1
        return split | self.domain.variables.sparse

    def _moments(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
        """Bytes of activations and gradients at each moment, `(2, moments)`, without and with batch
        dimension; and of the gradients that are left when backward has ended."""
        curve, moments = self.curve, self.curve.held.shape[1]
        begin = np.zeros(moments)
        own = np.where(kept, self.gradient_bytes, 0.0)
        np.add.at(begin, curve.gradient_from, own)
        held = curve.held.copy()
        held[0] += begin.cumsum()
        passing = ~kept[curve.made_of] | (curve.made_at > curve.gradient_from[curve.made_of])
        np.add.at(held[0], curve.made_at[passing], self.gradient_bytes[curve.made_of[passing]])
        return held, float(own.sum())

    def _step_bytes(self) -> float:
        """What the optimizer's step needs for itself: torch's Adam takes one more tensor a
        variable, all at once on a GPU (foreach), one after the other on a CPU."""
        if self.domain.optimizer.state_tensors < 2:
            return 0.0
        sizes = self.domain.variables.size_bytes
        return float(sizes.sum() if self.on_gpu else 2 * sizes.max())


def memory_of(domain: Domain) -> DomainMemory:
    """Raises InvalidInput where the graph's variables have too many dimensions."""
    table = domain.variables
    on_gpu = any(DEVICE_TYPES[d.type].is_gpu for d in domain.cluster.device_of_rank())
    rows = table.size_bytes // table.dims[:, 0] + INDEX_BYTES
    gradients = np.where(table.sparse, rows * table.touched_rows, table.size_bytes)
    curve = activation_curve(domain.graph, on_gpu)
    return DomainMemory(domain, on_gpu, curve, gradients.astype(np.float64))


def peak_bytes(
    plans: PlanTable, population: Population, domain: Domain, index: int = 0
) -> NDArray[np.float64]:
    """`DomainMemory.peak_bytes` for a single strategy."""
    return memory_of(domain).peak_bytes(plans, population, index)


def device_memory_bytes(domain: Domain) -> NDArray[np.float64]:
    """The memory of every rank's device, `(world,)`: as the cluster states it, else its type's data
    sheet; infinite for a CPU whose memory is not stated, for there is no such sheet."""
    return np.array(
        [
            device.memory_bytes
            if device.memory_gb is not None or DEVICE_TYPES[device.type].is_gpu
            else np.inf
            for device in domain.cluster.device_of_rank()
        ]
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """One strategy of compiled plans. Of its messages (M): operation, update, root, bucket (counted
    from its first), wire_bytes, encoding, first (of its chain). size_bytes f64[C]: of each bucket's
    values. shares f64[world]: of each rank, over the even one. buckets_of_variable i64[V]."""

    domain: Domain
    plans: PlanTable
    is_ddp: bool
    shares: NDArray[np.float64]
    rows: NDArray[np.int64]
    bucket: NDArray[np.int64]
    first: NDArray[np.bool_]
    size_bytes: NDArray[np.float64]
    buckets_of_variable: NDArray[np.int64]

    @classmethod
    def of(cls, plans: PlanTable, population: Population, domain: Domain, index: int) -> "_Part":
        shares = np.zeros(domain.world_size)
        for replica in population.layouts[population.layout[index]]:
            shares[replica.rank] = replica.share * domain.world_size
        rows = np.arange(int(plans.first[index]), int(plans.first[index + 1]))
        begin = int(plans.bucket[rows].min()) if len(rows) else 0
        bucket = plans.bucket[rows] - begin
        count = int(bucket.max(initial=-1)) + 1
        edges = plans.bucket_first[begin : begin + count + 1]
        pieces = slice(int(edges[0]), int(edges[-1]))
        of_piece = np.repeat(np.arange(count), np.diff(edges))
        shard = plans.piece_row[pieces] + int(population.first[index])
        variable = population.variable[shard].astype(np.int64)
        length = plans.piece_stop[pieces] - plans.piece_start[pieces]
        size = np.zeros(count)
        np.add.at(size, of_piece, length * domain.variables.item_bytes[variable])
        pairs = np.unique(np.stack((variable, of_piece)), axis=1)
        whole_parts = np.bincount(pairs[0], minlength=len(domain.graph.variables))
        cut = (population.axis[index] > 0) & (population.parts[index] > 1)
        return cls(
            domain,
            plans,
            bool(population.order[index] == Order.DDP),
            shares,
            rows,
            bucket,
            plans.after[rows] < 0,
            size,
            np.where(cut, 2, whole_parts),
        )

    def column(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = getattr(self.plans, name)[self.rows].astype(np.int64)
        return values

    def at_owner(
        self, chosen: NDArray[np.bool_], sizes: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sums of `sizes` over the chosen messages at each one's root, `(world,)`; a host without
        replicas has a memory of its own."""
        roots = self.column("root")[chosen]
        servers = self.domain.cluster.servers
        found = np.zeros(servers)
        np.add.at(found, roots, sizes[chosen])
        return found[: self.domain.world_size]


def state_bytes(part: "_Part") -> NDArray[np.float64]:
    """Optimizer state: of every variable on every rank, of an owned one at its owner, of a sharded
    one in equal parts."""
    size, update = part.size_bytes[part.bucket], part.column("update")
    held = part.at_owner(update == Update.OWNER, size)
    held += size[update == Update.REPLICATED].sum()
    held += size[update == Update.SHARD].sum() / part.domain.world_size
    result: NDArray[np.float64] = part.domain.optimizer.state_tensors * held
    return result


def buffer_bytes(part: "_Part") -> NDArray[np.float64]:
    """Flat buffers, one a bucket (none of touched rows); what is sent in another type than the
    buffer's; and what a reduce-scatter or an owner receives apart on gloo, where ranks add up by
    themselves."""
    world, wire = part.domain.world_size, part.column("wire_bytes").astype(np.float64)
    operation, encoding = part.column("operation"), part.column("encoding")
    sparse = np.isin(operation, [int(op) for op in Op if op.sparse])
    flat = part.size_bytes[part.bucket]
    held = np.full(world, flat[part.first & ~sparse].sum())
    packed = (encoding > 0) & ~sparse
    held += wire[packed].sum()
    held += flat[part.first & (encoding > POWERSGD)].sum()  # the error that is fed back
    held += wire[np.isin(operation, GATHERS)].sum() * (world - 1)
    if part.domain.cluster.backend == "gloo":
        held += wire[operation == Op.REDUCE_SCATTER].sum()
    apart = part.domain.cluster.backend == "gloo"
    pushes = np.isin(operation, PUSHES) & (sparse | apart)
    senders = np.array([_members(part.plans, int(r)) - 1 for r in part.rows[pushes]])
    received = np.zeros(len(wire))
    received[pushes] = wire[pushes] * senders
    return held + part.at_owner(pushes, received)


def update_bytes(part: "_Part") -> NDArray[np.float64]:
    """A second copy of the values that an owner or a shard updates in flat form."""
    size, update = part.size_bytes[part.bucket], part.column("update")
    rows = np.isin(part.column("operation"), [int(op) for op in Op if op.sparse])
    held = part.at_owner((update == Update.OWNER) & ~rows, size)
    held += size[update == Update.SHARD].sum() / part.domain.world_size
    return held


def _members(plans: PlanTable, row: int) -> int:
    return sum(len(team) for team in plans.teams[plans.ranks[row]])
