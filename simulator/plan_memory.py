"""What compiled plans hold on each rank beside values, gradients and activations: message buffers,
optimizer state, and the copies that updates are made in. By columns, over all strategies at once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autosync.codes import POWERSGD, Op, Order, Update
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population

GATHERS = tuple(int(op) for op in (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER))
PUSHES = tuple(int(op) for op in Op if op.to_owner)
SPARSE = tuple(int(op) for op in Op if op.sparse)

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class PlanMemory:
    """Of n strategies on a world of ranks, with their compiled plans."""

    domain: Domain
    plans: PlanTable
    population: Population

    def held_bytes(self) -> F64:
        """Message buffers, optimizer state and copies of values, `(n, world)`."""
        return self._state_bytes() + self._buffer_bytes() + self._update_bytes()

    def gradients_beside_buffers(self) -> NDArray[np.bool_]:
        """`(n, V)`: whose gradients live in tensors of their own. A whole variable that lies in one
        bucket has a view of it instead; torch's DDP keeps both."""
        population = self.population
        cut = (population.axis > 0) & (population.parts > 1)
        in_one = (self._buckets_of_variables == 1) & ~cut
        is_ddp = population.order == Order.DDP
        result: NDArray[np.bool_] = is_ddp[:, None] | ~in_one | self.domain.variables.sparse
        return result

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
        size, update = self._flat_bytes, self.plans.update
        held = self._at_owner(update == Update.OWNER, size)
        held += self._summed(update == Update.REPLICATED, size)
        held += self._summed(update == Update.SHARD, size) / self.domain.world_size
        return self.domain.optimizer.state_tensors * held

    def _buffer_bytes(self) -> F64:
        """Flat buffers, one a bucket (none of touched rows); what is sent in another type than the
        buffer's; and what a reduce-scatter or an owner receives apart on gloo, where ranks add up
        by themselves."""
        plans, world = self.plans, self.domain.world_size
        on_gloo = self.domain.cluster.backend == "gloo"
        wire = plans.wire_bytes.astype(np.float64)
        sparse, first = np.isin(plans.operation, SPARSE), plans.after < 0
        held = np.zeros((len(plans), world))
        held += self._summed(first & ~sparse, self._flat_bytes)
        held += self._summed((plans.encoding > 0) & ~sparse, wire)
        held += self._summed(first & (plans.encoding > POWERSGD), self._flat_bytes)  # what is lost
        held += self._summed(np.isin(plans.operation, GATHERS), wire) * (world - 1)
        if on_gloo:
            held += self._summed(plans.operation == Op.REDUCE_SCATTER, wire)
        members = np.array([sum(len(team) for team in teams) for teams in plans.teams])
        senders = members[plans.ranks] - 1 if len(members) else np.zeros(len(wire))
        pushes = np.isin(plans.operation, PUSHES) & (sparse | on_gloo)
        return held + self._at_owner(pushes, wire * senders)

    def _update_bytes(self) -> F64:
        """A second copy of the values that an owner or a shard updates in flat form."""
        size, update = self._flat_bytes, self.plans.update
        sparse = np.isin(self.plans.operation, SPARSE)
        held = self._at_owner((update == Update.OWNER) & ~sparse, size)
        return held + self._summed(update == Update.SHARD, size) / self.domain.world_size

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
    def _flat_bytes(self) -> F64:
        """Of each message's bucket: its values."""
        plans = self.plans
        item_bytes = self.domain.variables.item_bytes[self._variable_of_piece]
        pieces = ((plans.piece_stop - plans.piece_start) * item_bytes).astype(np.float64)
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

    def _at_owner(self, chosen: NDArray[np.bool_], sizes: F64) -> F64:
        """The same at each message's root, `(n, world)`; a host without replicas has a memory of
        its own."""
        servers = self.domain.cluster.servers
        cells = self._strategy_of_message[chosen] * servers + self.plans.root[chosen]
        shape = (len(self.plans), servers)
        found = np.bincount(cells, weights=sizes[chosen], minlength=shape[0] * shape[1])
        return found.astype(np.float64).reshape(shape)[:, : self.domain.world_size]
