"""What ranks compute: the profile stretched by each rank's device and share, the optimizer's step,
and the products that rebuild gradients of sufficient factors.
"""

import numpy as np
from numpy.typing import NDArray

from autosync.cluster.devices import DEVICE_TYPES
from autosync.codes import Op
from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.profiling import EFFICIENCY
from autosync.strategy import Replica


def compute_factors(domain: Domain, layout: tuple[Replica, ...]) -> NDArray[np.float64]:
    """How many times the profiled compute each rank takes, `(world,)`; 0 without a replica.

    A share of the global batch above the even one, a slowdown and a device type with a lower
    published peak than the profile's each stretch it.
    """
    factors = np.zeros(domain.world_size)
    devices, world = domain.cluster.device_of_rank(), domain.world_size
    for replica in layout:
        device = devices[replica.rank]
        factors[replica.rank] = replica.share * world * domain.profile.factor_on(device)
    return factors


def slowest_factors(
    domain: Domain, layouts: tuple[tuple[Replica, ...], ...]
) -> NDArray[np.float64]:
    """The slowest rank's factor under each layout, `(layouts,)`."""
    return np.array([compute_factors(domain, layout).max() for layout in layouts])


def compute_seconds(
    domain: Domain, layouts: tuple[tuple[Replica, ...], ...]
) -> NDArray[np.float64]:
    """Forward, backward and update of the slowest rank under each layout, `(layouts,)`."""
    profile = domain.profile
    compute = slowest_factors(domain, layouts) * profile.compute_seconds
    result: NDArray[np.float64] = compute + profile.update_seconds
    return result


F64 = NDArray[np.float64]

OF_ROWS = [int(operation) for operation in Op if operation.sparse]


# Updates and rebuilt gradients go by the elements of a bucket's variables. Its message says by its
# `ready` which variable's gradient comes last; where several variables with rows or factors share a
# message, they count as that one.


def update_seconds_of_buckets(plans: PlanTable, domain: Domain) -> F64:
    """Seconds in which one rank updates each bucket whole, `(buckets,)`: its share of what an
    iteration changes. Of a table whose gradients travel as rows, these are the touched ones."""
    if not domain.profile.update_seconds:
        return np.zeros(len(plans.bucket_first) - 1)
    variables = domain.variables
    rows = variables.dims[:, 0]
    touched = np.where(variables.sparse, variables.touched_rows / rows, 1.0)
    each = domain.profile.update_seconds / float((variables.elements * touched).sum())
    sparse = np.isin(plans.operation, OF_ROWS)
    return _elements(plans) * each * _by_bucket(plans, domain, sparse, touched, 1.0)


def rebuild_seconds_of_buckets(plans: PlanTable, domain: Domain) -> F64:
    """Seconds in which a rank of nominal speed rebuilds the gradients of each bucket that arrives
    as factors, `(buckets,)`; 0 for others.

    Of an (M, N) weight every rank multiplies the factors of all P ranks, (P K x M) by (P K x N):
    2 P K M N FLOPs, where its own product has 2 K M N (`runtime.compression.factors`; Poseidon,
    section 3.3).
    """
    factors = plans.operation == Op.FACTOR_ALL_GATHER
    if not factors.any():
        return np.zeros(len(plans.bucket_first) - 1)
    each = domain.world_size * product_seconds_per_element(domain)
    return _elements(plans) * _by_bucket(plans, domain, factors, each, 0.0)


def product_seconds_per_element(domain: Domain) -> F64:
    """Seconds per element of a gradient that one rank's own factors make, `(variables,)`.

    The device multiplies at the rate at which the profile's operation uses the weight (its forward
    pass is a product of as many FLOPs), or at that assumed of its type (`profiling.EFFICIENCY` of
    its peak) where this is higher: what an operation spends besides multiplying does not grow with
    ranks. 0 for a variable without factors, and where FLOPs or seconds are not known.
    """
    graph, forward = domain.graph, domain.profile.forward_seconds
    device = DEVICE_TYPES.get(domain.profile.device)
    at_peak = 1.0 / (EFFICIENCY * device.peak_flops_per_second) if device else np.inf
    found = np.zeros(len(graph.variables))
    for index, variable in enumerate(graph.variables):
        operation = int(domain.variables.first_use[index])
        flops = graph.operations[operation].forward_flops
        if variable.factor_rows and flops:
            rows = float(domain.variables.factor_rows[index])
            found[index] = 2.0 * rows * min(forward[operation] / flops, at_peak)
    return found


def _elements(plans: PlanTable) -> F64:
    """Of each bucket, `(buckets,)`."""
    total = np.concatenate([[0], np.cumsum(plans.piece_stop - plans.piece_start)])
    found: F64 = np.diff(total[plans.bucket_first]).astype(np.float64)
    return found


def _by_bucket(
    plans: PlanTable, domain: Domain, of: NDArray[np.bool_], values: F64, other: float
) -> F64:
    """`values` (by variable) for the buckets of messages `of` that wait for a gradient, `other` for
    all others, `(buckets,)`."""
    found = np.full(len(plans.bucket_first) - 1, other)
    first = np.flatnonzero(of & (plans.ready >= 0))
    order = np.array(domain.graph.gradient_order, dtype=np.int64)
    found[plans.bucket[first]] = values[order[plans.ready[first]]]
    return found
