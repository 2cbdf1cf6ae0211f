"""What compiled plans hold on each rank beside values, gradients and activations: message buffers,
optimizer state, and the copies that updates are made in. By columns, over all strategies at once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.devices import DEVICE_TYPES
from autosync.codes import POWERSGD, Op, Order, Update
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.extension_prediction import Prediction, Rows, carried_predictions

GATHERS = tuple(int(op) for op in (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER))
PUSHES = tuple(int(op) for op in Op if op.to_owner)
SPARSE = tuple(int(op) for op in Op if op.sparse)

LEAST_SUM_BYTES = 4
"""An element's, as `runtime.transport.gloo.sum_type` has it."""

F64 = NDArray[np.float64]


def on_gpus(domain: Domain) -> bool:
    """Whether any replica is on a GPU."""
    return any(DEVICE_TYPES[each.type].is_gpu for each in domain.cluster.device_of_rank())


@dataclass(frozen=True)
class PlanMemory:
    """Of n strategies on a world of ranks, with their compiled plans."""

    domain: Domain
    plans: PlanTable
    population: Population

    def held_bytes(self) -> F64:
        """Message buffers, optimizer state and copies of values, `(n, world)`."""
        found = self._state_bytes() + self._buffer_bytes() + self._update_bytes()
        for prediction, _ in self._extensions:
            found = prediction.held_bytes(self, found)
        return found

    def gradients_beside_buffers(self) -> NDArray[np.bool_]:
        """`(n, V)`: whose gradients live in tensors of their own. A whole variable that lies in one
        bucket has a view of it instead; torch's DDP by default and some extensions keep both."""
        population = self.population
        views = [bool(each and each.gradient_as_bucket_view) for each in population.ddp_arguments]
        copied = (population.order == Order.DDP) & ~np.array(views, dtype=np.bool_)[population.ddp]
        for prediction, rows in self._extensions:
            if prediction.keeps_gradients:
                copied[rows] = True
        result: NDArray[np.bool_] = (
            copied[:, None] | ~self.whole_in_a_bucket | self.domain.variables.sparse
        )
        return result

    def gradients_until_the_next(self) -> NDArray[np.bool_]:
        """`(n, V)`: dense ones that lie in several buckets. This runtime gives one up when the next
        backward pass has packed another."""
        own = self.population.order != Order.DDP
        result: NDArray[np.bool_] = (
            own[:, None] & ~self.whole_in_a_bucket & ~self.domain.variables.sparse
        )
        return result

    def behind_backward_bytes(
        self, kept: NDArray[np.bool_], gradient_bytes: F64, step_bytes: F64
    ) -> F64:
        """The most that gradients and the optimizer's step take beside what is held all the time,
        `(n, world)`.

        kept bool[n, V]: whose gradients are not held all the time. gradient_bytes f64[V].
        step_bytes: what the step needs for itself, `(n, world)`.
        """
        found: F64 = np.where(kept, gradient_bytes, 0.0).sum(axis=1)[:, None] + step_bytes
        return found

    def updated_at_once(self) -> F64:
        """The largest share of all values that one call of the optimizer updates, `(n, world)`.

        What every rank updates whole is updated in one call; what an owner or a shard updates, in
        one call a message. Updates that may be late are steps of the whole model.
        """
        plans, size, strategy = self.plans, self.flat_bytes, self._strategy_of_message
        owned, sharded = plans.update == Update.OWNER, plans.update == Update.SHARD
        most = np.zeros((len(plans), self.domain.cluster.servers))
        np.maximum.at(most, (strategy[owned], plans.root[owned]), size[owned])
        np.maximum.at(most, strategy[sharded], size[sharded][:, None] / self.domain.world_size)
        whole = self._summed(plans.update == Update.REPLICATED, size)
        found: F64 = np.maximum(most[:, : self.domain.world_size], whole) / self.model_bytes
        for prediction, rows in self._extensions:
            if prediction.keeps_gradients:
                found[rows] = 1.0
        return found

    def shares(self) -> F64:
        """Of each layout's ranks, over the even one, `(layouts, world)`."""
        found = np.zeros((len(self.population.layouts), self.domain.world_size))
        for row, layout in zip(found, self.population.layouts, strict=True):
            for replica in layout:
                row[replica.rank] = replica.share * len(row)
        return found

    def _state_bytes(self) -> F64:
        """Optimizer state: of every variable on every rank, of an owned one at its owner, of a
        sharded one in equal parts."""
        size, update = self.flat_bytes, self.plans.update
        held = self.at_owner(update == Update.OWNER, size)
        held += self._summed(update == Update.REPLICATED, size)
        held += self._summed(update == Update.SHARD, size) / self.domain.world_size
        return self.domain.optimizer.state_tensors * held

    def _buffer_bytes(self) -> F64:
        """Flat buffers, one a bucket (none of touched rows); what is sent in another type than the
        buffer's; and what a reduce-scatter or an owner receives apart where ranks add up by
        themselves, as on gloo: of GPUs that is in host memory (`runtime.transport.staged`)."""
        plans, world = self.plans, self.domain.world_size
        apart = () if on_gpus(self.domain) else backend_of(self.domain.cluster).ranks_add_up
        wire = plans.wire_bytes.astype(np.float64)
        sparse, first = np.isin(plans.operation, SPARSE), plans.after < 0
        held = np.zeros((len(plans), world))
        held += self._summed(first & ~sparse, self.flat_bytes)
        held += self._summed((plans.encoding > 0) & ~sparse, wire)
        held += self._summed(first & (plans.encoding > POWERSGD), self._error_bytes())
        held += self._summed(np.isin(plans.operation, GATHERS), wire) * (world - 1)
        if Op.REDUCE_SCATTER in apart:
            held += self._summed(plans.operation == Op.REDUCE_SCATTER, wire)
        used, place = np.unique(plans.ranks, return_inverse=True)
        members = [sum(map(len, plans.teams[index])) for index in used.tolist()]
        senders = np.array(members, dtype=np.int64)[place] - 1
        pushes = np.isin(plans.operation, PUSHES) & (sparse | (Op.PUSH in apart))
        return held + self.at_owner(pushes, wire * senders)

    def _error_bytes(self) -> F64:
        """What PowerSGD keeps of each message's bucket from one iteration to the next: the error.
        That of this runtime is in float32; of smaller types so is the gradient that the error was
        added to (`runtime.compression.powersgd`)."""
        own = (self.population.order != Order.DDP)[self._strategy_of_message]
        widened = own & (self.sum_bytes > self.flat_bytes)
        found: F64 = np.where(widened, 2.0 * self.sum_bytes, self.flat_bytes)
        return found

    def _update_bytes(self) -> F64:
        """A second copy of the values that an owner or a shard updates in flat form."""
        size, update = self.flat_bytes, self.plans.update
        sparse = np.isin(self.plans.operation, SPARSE)
        held = self.at_owner((update == Update.OWNER) & ~sparse, size)
        return held + self._summed(update == Update.SHARD, size) / self.domain.world_size

    @cached_property
    def _extensions(self) -> list[tuple[Prediction, Rows]]:
        return carried_predictions(self.population)

    @cached_property
    def whole_in_a_bucket(self) -> NDArray[np.bool_]:
        """`(n, V)`."""
        cut = (self.population.axis > 0) & (self.population.parts > 1)
        found: NDArray[np.bool_] = (self._buckets_of_variables == 1) & ~cut
        return found

    @cached_property
    def model_bytes(self) -> F64:
        """All buckets once, `(n, 1)`."""
        return self._summed(self.plans.after < 0, self.flat_bytes)

    @cached_property
    def _strategy_of_message(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.plans)), np.diff(self.plans.first))

    @cached_property
    def _strategy_of_bucket(self) -> NDArray[np.int64]:
        found = np.zeros(len(self.plans.bucket_first) - 1, dtype=np.int64)
        found[self.plans.bucket] = self._strategy_of_message
        return found

    @cached_property
    def _bucket_of_piece(self) -> NDArray[np.int64]:
        sizes = np.diff(self.plans.bucket_first)
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def _variable_of_piece(self) -> NDArray[np.int64]:
        strategy = self._strategy_of_bucket[self._bucket_of_piece]
        shard = self.plans.piece_row + self.population.first[strategy]
        result: NDArray[np.int64] = self.population.variable[shard].astype(np.int64)
        return result

    @cached_property
    def flat_bytes(self) -> F64:
        """Of each message's bucket: its values."""
        return self._bucket_bytes(self.domain.variables.item_bytes)

    @cached_property
    def sum_bytes(self) -> F64:
        """The same in the type in which sums are formed, of 4 bytes at least."""
        return self._bucket_bytes(np.maximum(self.domain.variables.item_bytes, LEAST_SUM_BYTES))

    def _bucket_bytes(self, item_bytes: NDArray[np.int64]) -> F64:
        """item_bytes: of each variable."""
        plans = self.plans
        of_piece = item_bytes[self._variable_of_piece]
        pieces = ((plans.piece_stop - plans.piece_start) * of_piece).astype(np.float64)
        buckets = len(plans.bucket_first) - 1
        size = np.bincount(self._bucket_of_piece, weights=pieces, minlength=buckets)
        result: F64 = size.astype(np.float64)[plans.bucket]
        return result

    @cached_property
    def _buckets_of_variables(self) -> NDArray[np.int64]:
        """`(n, V)`: in how many buckets a variable lies."""
        count = len(self.domain.graph.variables)
        pairs = np.unique(self._bucket_of_piece * count + self._variable_of_piece)
        cells = self._strategy_of_bucket[pairs // count] * count + pairs % count
        found = np.bincount(cells, minlength=len(self.plans) * count).astype(np.int64)
        return found.reshape(len(self.plans), count)

    def _summed(self, chosen: NDArray[np.bool_], sizes: F64) -> F64:
        """Sums of `sizes` over the chosen messages of each strategy, `(n, 1)`."""
        strategy = self._strategy_of_message[chosen]
        found = np.bincount(strategy, weights=sizes[chosen], minlength=len(self.plans))
        return found.astype(np.float64)[:, None]  # of no messages numpy counts in integers

    def at_owner(self, chosen: NDArray[np.bool_], sizes: F64) -> F64:
        """The same at each message's root, `(n, world)`; a host without replicas has a memory of
        its own."""
        servers = self.domain.cluster.servers
        cells = self._strategy_of_message[chosen] * servers + self.plans.root[chosen]
        shape = (len(self.plans), servers)
        found = np.bincount(cells, weights=sizes[chosen], minlength=shape[0] * shape[1])
        return found.astype(np.float64).reshape(shape)[:, : self.domain.world_size]
