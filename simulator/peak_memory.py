"""An estimate of every device's peak memory under a strategy.

It adds up what the documents state and was not checked against measurements: no strategy is
refused for it.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op, Update
from autosync.devices import DEVICE_TYPES
from autosync.domain import Domain
from autosync.graph import ModelGraph
from autosync.plan import PlanTable
from autosync.plan.compiler_arrays import domain_arrays
from autosync.population import Population

IN_PLACE = {"relu_", "add_", "mul_", "div_", "sub_", "view", "t", "transpose", "expand", "slice"}
"""Operations that keep their input's storage."""


def peak_bytes(
    plans: PlanTable, population: Population, domain: Domain, index: int = 0
) -> NDArray[np.float64]:
    """Peak bytes of every rank under strategy `index`, `(world,)`.

    Parameters, gradients, optimizer state, message buffers, and the most activations that live
    at once. Workspaces of kernels and the allocator's own waste are not known here.
    """
    shares = np.zeros(domain.world_size)
    for replica in population.layouts[population.layout[index]]:
        shares[replica.rank] = replica.share * domain.world_size
    fixed, batched = activation_bytes(domain.graph)
    parameters = domain.graph.size_bytes
    return (
        2.0 * parameters
        + fixed
        + shares * batched
        + state_bytes(plans, domain, index)
        + buffer_bytes(plans, domain, index)
    )


def device_memory_bytes(domain: Domain) -> NDArray[np.float64]:
    """The memory of every rank's device, `(world,)`: as the cluster states it, or its type's."""
    stated = [
        (device.memory_gb or DEVICE_TYPES[device.type].memory_gb) * 1e9
        for device in domain.cluster.device_of_rank()
    ]
    return np.array(stated)


def state_bytes(plans: PlanTable, domain: Domain, index: int) -> NDArray[np.float64]:
    """Optimizer state: of every variable on every rank, of an owned one at its owner (a host
    without replicas has its own memory), of a sharded one in equal parts."""
    world = domain.world_size
    rows = np.arange(int(plans.first[index]), int(plans.first[index + 1]))
    size = _bucket_bytes(plans, domain, index)[plans.bucket[rows]]
    held = np.full(world, size[plans.update[rows] == Update.REPLICATED].sum())
    held += size[plans.update[rows] == Update.SHARD].sum() / world
    owned = plans.update[rows] == Update.OWNER
    at = plans.root[rows[owned]].astype(np.int64)
    held += np.bincount(at, weights=size[owned], minlength=domain.cluster.servers)[:world]
    result: NDArray[np.float64] = domain.optimizer.state_tensors * held
    return result


def buffer_bytes(plans: PlanTable, domain: Domain, index: int) -> NDArray[np.float64]:
    """Flat buffers, one a bucket, and what a root or a reduce-scatter on gloo receives apart."""
    world = domain.world_size
    rows = np.arange(int(plans.first[index]), int(plans.first[index + 1]))
    wire = plans.wire_bytes[rows].astype(np.float64)
    operation = plans.operation[rows]
    first = plans.after[rows] < 0
    held = np.full(world, wire[first].sum())
    if domain.cluster.backend == "gloo":
        held += wire[operation == Op.REDUCE_SCATTER].sum()
    gathered = np.isin(operation, (Op.SPARSE_ALL_GATHER, Op.FACTOR_ALL_GATHER))
    held += wire[gathered].sum() * (world - 1)
    for push in np.flatnonzero(np.isin(operation, [op for op in Op if op.to_owner])):
        root = int(plans.root[rows[push]])
        if root < world:
            senders = sum(len(team) for team in plans.teams[plans.ranks[rows[push]]]) - 1
            held[root] += wire[push] * senders
    return held


def _bucket_bytes(plans: PlanTable, domain: Domain, index: int) -> NDArray[np.float64]:
    """Bytes of every bucket's values, `(buckets,)`."""
    elements = np.add.reduceat(plans.piece_stop - plans.piece_start, plans.bucket_first[:-1])
    result: NDArray[np.float64] = elements * float(domain_arrays(domain).item_bytes.max())
    return result


def activation_bytes(graph: ModelGraph) -> tuple[float, float]:
    """The most that lives at once in forward and backward: without and with batch dimension.

    An output lives from its forward until its own backward has run, its gradient from the first
    consumer's backward until then.
    """
    count = len(graph.operations)
    backward_at = np.empty(count, dtype=np.int64)
    backward_at[list(graph.backward_order)] = count + np.arange(count)
    gradient_from = backward_at.copy()
    for index, operation in enumerate(graph.operations):
        for source in operation.inputs:
            gradient_from[source] = min(gradient_from[source], backward_at[index])
    change = np.zeros((2, 2 * count + 1))
    for index, operation in enumerate(graph.operations):
        batched = int(operation.has_batch_dimension)
        stop = backward_at[index] + 1
        if operation.type not in IN_PLACE:
            change[batched, index] += operation.output_bytes
            change[batched, stop] -= operation.output_bytes
        change[batched, gradient_from[index]] += operation.output_bytes
        change[batched, stop] -= operation.output_bytes
    held = change.cumsum(axis=1)
    peak = int(held.sum(axis=0).argmax())
    return float(held[0, peak]), float(held[1, peak])
