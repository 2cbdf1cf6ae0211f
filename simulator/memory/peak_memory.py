"""Every device's peak memory under a strategy.

Parameters, gradients, optimizer state and message buffers as the runtime, torch's DDP and its
`fully_shard` allocate them, and the activations that live at each moment.
`benchmarks/peak_memory.py` holds it against what the allocator of the CPU counts. Not known here:
inputs, workspaces of kernels, the allocator's own waste, the context of a GPU.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.extension_prediction import carried_predictions
from autosync.simulator.memory.live_tensors import (
    ActivationCurve,
    activation_curve,
    gradients_at,
    living_bytes,
    most_living,
)
from autosync.simulator.memory.plan_memory import LEAST_SUM_BYTES, PlanMemory, on_gpus
from autosync.simulator.memory.sharded_memory import Batch, held_bytes, units_of
from autosync.torch_engine import FullyShard

INDEX_BYTES = 8

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DomainMemory:
    """What the peak of any strategy of a domain is made of; `memory_of` makes it.

    on_gpu: of the replicas' devices. gradient_bytes: f64[V], of one replica's gradient.
    """

    domain: Domain
    on_gpu: bool
    curve: ActivationCurve
    gradient_bytes: F64

    def peak_bytes(self, plans: PlanTable, population: Population, batch_scale: float = 1.0) -> F64:
        """Peak bytes of every rank under each strategy of compiled plans, `(n, world)`.

        batch_scale: at so many times the domain's batch size.
        """
        part = PlanMemory(self.domain, plans, population)
        fixed, added_up, kept = self._fixed_and_kept(part)
        shares = part.shares()[population.layout]
        compute = np.empty(shares.shape)
        for share in np.unique(shares):
            of_share = most_living(
                self.curve, self.gradient_bytes, kept, float(share) * batch_scale
            )
            compute = np.where(shares == share, of_share[:, None], compute)
        after = part.behind_backward_bytes(kept, self.gradient_bytes, self._step_bytes(part))
        peaks: F64 = fixed + np.maximum(compute + added_up, after)
        alike: dict[tuple[int, int], list[int]] = {}  # by engine, and by how gradients are reduced
        for index in np.flatnonzero(population.engine).tolist():
            option = int(population.option[population.first[index]])
            alike.setdefault((int(population.engine[index]), option), []).append(index)
        for (code, _), rows in alike.items():
            engine = population.engines[code]
            assert engine is not None
            peaks[rows] = self._sharded_peak(population, rows[0], engine, batch_scale)
        for prediction, own in carried_predictions(population):
            peaks[own] = prediction.peak_bytes(
                self, plans, population, own, batch_scale, peaks[own]
            )
        return peaks

    def moment_bytes(
        self,
        plans: PlanTable,
        population: Population,
        rows: Iterable[int],
        batch_scale: float = 1.0,
    ) -> Iterator[F64]:
        """What each rank holds without extensions, in every moment of the curve and, last, in the
        optimizer's step: of one strategy after the other, each run by this runtime or torch's DDP,
        `(world, 2n + 1)`."""
        part = PlanMemory(self.domain, plans, population)
        (fixed, added_up, kept), shares = self._fixed_and_kept(part), part.shares()
        after = part.behind_backward_bytes(kept, self.gradient_bytes, self._step_bytes(part))
        for row in rows:
            of_batch = shares[population.layout[row]] * batch_scale
            living = self._living(kept[row], of_batch) + added_up[row]
            step = after[row][:, None]
            yield fixed[row][:, None] + np.hstack((living, step))

    def _fixed_and_kept(self, part: PlanMemory) -> tuple[F64, F64, NDArray[np.bool_]]:
        """What is held all the time, `(n, world)`; the others as `lasting_gradients`."""
        kept, until_next = part.gradients_beside_buffers(), part.gradients_until_the_next()
        always, added_up, kept = self.lasting_gradients(kept, until_next, self.gradient_bytes)
        return self.domain.graph.values_bytes + part.held_bytes() + always, added_up, kept

    def lasting_gradients(
        self, kept: NDArray[np.bool_], until_next: NDArray[np.bool_], gradient_bytes: F64
    ) -> tuple[F64, F64, NDArray[np.bool_]]:
        """Bytes of gradients that are held all the time, `(n, 1)`, and beside these in both passes,
        `(n, 1)`; and whose gradients live in tensors of their own from their making on, `(n, V)`.

        Gradients that several batches add up live from the first batch on: to the update, or, of
        those that have a view of a buffer, until the last batch packs them. Of two batches this is
        too much by what the second has packed at the peak.

        kept, until_next: `PlanMemory.gradients_beside_buffers`, `gradients_until_the_next`.
        gradient_bytes: f64[V].
        """
        earlier = kept & until_next

        def total(chosen: NDArray[np.bool_]) -> F64:
            found: F64 = np.where(chosen, gradient_bytes, 0.0).sum(axis=1)[:, None]
            return found

        if self.domain.accumulate == 1:  # the next gradient takes the place of the earlier one
            return total(earlier), np.zeros((len(kept), 1)), kept & ~earlier
        return total(earlier) + total(kept), total(~kept), np.zeros_like(kept)

    def _living(self, kept: NDArray[np.bool_], shares: F64) -> F64:
        """Activations and gradients of one strategy in every moment of the curve, `(world, 2n)`.
        kept bool[V]: see `gradients_beside_buffers`. shares f64[world]: of the batch, over the even
        one."""
        gradients = gradients_at(self.curve, self.gradient_bytes, kept[None])[0]
        living: F64 = self.curve.held[0] + gradients + shares[:, None] * self.curve.held[1]
        return living

    def _sharded_peak(
        self, population: Population, index: int, engine: FullyShard, batch_scale: float
    ) -> float:
        """Of every rank: under `fully_shard` they hold alike."""
        domain = self.domain
        units = units_of(domain, self.curve, population, index, engine)
        moments = self.curve.held.shape[1]
        item_bytes = domain.variables.item_bytes
        made = np.minimum(item_bytes, 2) / item_bytes if engine.param_dtype else 1.0
        whole = living_bytes(self.curve, self.gradient_bytes * made)
        living, compute = whole[0] + batch_scale * whole[1], 0.0
        batches: tuple[Batch, ...] = ("only",) if domain.accumulate == 1 else ("before", "last")
        for batch in batches:
            copied = backend_of(domain.cluster).sharded_copies
            held = held_bytes(units, moments, copied, engine, batch)
            peak = living - held.freed + np.maximum(held.during, held.passing)
            compute = max(compute, float(peak.max()))
        step = held.parts * (1.0 + self.step_bytes() / domain.graph.size_bytes)
        kept = held.parts * (1 + domain.optimizer.state_tensors)
        kept += domain.graph.frozen_bytes / engine.shard_ranks  # without what is gathered of them
        return float(kept + max(compute, step))

    def most_bytes(self, share: float) -> float:
        """More than any strategy without extensions takes on any rank: values, gradients beside
        buffers, packed forms of them, an error fed back, a flat copy; and what every other rank may
        send of it.

        share: the largest share of the batch, over the even one.
        """
        table, world = self.domain.variables, self.domain.world_size
        activations = (self.curve.held[0] + max(share, 1.0) * self.curve.held[1]).max()
        copies = 7.0 + self.domain.optimizer.state_tensors
        copies += 3.0 * (table.item_bytes.min() < LEAST_SUM_BYTES)  # an error in float32
        copies += world if backend_of(self.domain.cluster).ranks_add_up else 0
        columns = table.elements // table.dims[:, 0]
        factors = table.factor_rows * (table.dims[:, 0] + columns) * table.item_bytes
        gathered = world * float(factors.sum() + self.gradient_bytes[table.sparse].sum())
        values = copies * table.size_bytes.sum() + self.domain.graph.frozen_bytes
        return float(values + gathered + activations)

    def alone_bytes(self) -> float:
        """Peak of one device without others, on which nothing is synchronized."""
        sizes = self.gradient_bytes
        every = np.ones((1, len(sizes)), dtype=np.bool_)
        always, _, kept = self.lasting_gradients(every, ~every, sizes)
        step = float(sizes[kept[0]].sum()) + self.step_bytes()
        state = self.domain.optimizer.state_tensors * self.domain.graph.size_bytes
        fixed = self.domain.graph.values_bytes + state + float(always[0, 0])
        return fixed + max(float(most_living(self.curve, sizes, kept, 1.0)[0]), step)

    def _step_bytes(self, part: PlanMemory) -> F64:
        """`step_bytes` of what one call of the optimizer updates, `(n, world)`."""
        if not self.on_gpu:
            return np.full((len(part.plans), self.domain.world_size), self.step_bytes())
        return self.step_bytes() * part.updated_at_once()

    def step_bytes(self) -> float:
        """What the optimizer's step needs for itself: torch's Adam takes one more tensor a
        variable, all at once on a GPU (foreach), one after the other on a CPU."""
        if self.domain.optimizer.state_tensors < 2:
            return 0.0
        sizes = self.domain.variables.size_bytes
        return float(sizes.sum() if self.on_gpu else 2 * sizes.max())


@lru_cache(maxsize=8)
def memory_of(domain: Domain) -> DomainMemory:
    """Raises InvalidInput where the graph's variables have too many dimensions."""
    table = domain.variables
    on_gpu = on_gpus(domain)
    rows = table.size_bytes // table.dims[:, 0] + INDEX_BYTES
    gradients = np.where(table.sparse, rows * table.touched_rows, table.size_bytes)
    curve = activation_curve(domain.graph, on_gpu)
    return DomainMemory(
        domain,
        on_gpu,
        curve,
        gradients.astype(np.float64),
    )


def device_memory_bytes(domain: Domain) -> F64:
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
