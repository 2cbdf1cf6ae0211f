"""The papers' analytic model: T = max(T_comp, T_sync), equations 1 to 3 mended."""

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.backends import backend_of
from autosync.simulator.cost.compute_time import compute_seconds
from autosync.simulator.cost.network import network_of
from autosync.simulator.extension_prediction import (
    restated_domain,
    restated_strategies,
    slowdowns,
)
from autosync.simulator.numba_cache import cached_kernel
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import RAGGED, before_seconds


class AnalyticSimulator:
    """AutoSync supplement, sections 1 to 3, mended where misprinted.

    T_sync is the sum over collectives (equation 3) plus, for parameter servers (equation 2), the
    maximum over servers of each server's sum, so that load balance counts. On NCCL ranks run one
    message after another, so there only rows of tables count by their server. Both directions are
    charged, replicas multiply traffic only without hierarchical reduction (then every rank sends
    for itself), and phi and delta are paid once a message, so that merging counts. It sees no
    schedule: neither readiness nor order nor overlap. What it predicts is that of a strategy that
    lags far enough for all messages to travel beside compute. What compute waits for extensions
    lengthens T_comp. Batches before the last of an update take what the timeline has.
    """

    name = "analytic"

    def predict(self, domain: Domain, population: Population) -> NDArray[np.float64]:
        """Seconds an iteration, `(strategies,)`."""
        return analytic_seconds(compile_plans_fast(population, domain), population, domain)


def analytic_seconds(
    plans: PlanTable, population: Population, domain: Domain
) -> NDArray[np.float64]:
    """Equation 1 for compiled plans: seconds an iteration, `(strategies,)`."""
    sync = _sync_seconds(plans, domain)
    compute = compute_seconds(domain, population.layouts)[population.layout]
    for index in np.flatnonzero(restated_strategies(population)).tolist():
        own = restated_domain(domain, population, index)
        compute[index] = compute_seconds(own, (population.layouts[population.layout[index]],))[0]
        if own.cluster is not domain.cluster:
            sync[index] = _sync_seconds(plans, own)[index]
    stalled = slowdowns(domain, population, plans) - 1.0
    compute = compute + stalled * (compute - domain.profile.update_seconds)
    result: NDArray[np.float64] = np.maximum(compute, sync)
    return result + before_seconds(population, domain, plans)


def _sync_seconds(plans: PlanTable, domain: Domain) -> NDArray[np.float64]:
    """T_sync of each plan, `(strategies,)`."""
    costs = network_of(domain.cluster, plans.teams)
    root = plans.root
    if backend_of(domain.cluster).one_order:  # ranks serve side by side with rows alone
        ordered = (root < domain.world_size) & ~np.isin(plans.operation, RAGGED)
        root = np.where(ordered, -1, root).astype(root.dtype)
    sync = np.empty(len(plans))
    _sum_messages(
        plans.first,
        root,
        plans.wire_bytes,
        costs.classes_of(plans),
        costs.message_seconds,
        costs.copy_seconds_per_byte + costs.equation_seconds_per_byte,
        np.zeros(domain.cluster.servers + 1),
        sync,
    )
    return sync


@cached_kernel
def _sum_messages(  # type: ignore[no-untyped-def]
    first, root, wire_bytes, message_class, startup, per_byte, busy, sync
):
    """sync f64[n]: the collectives' seconds plus the busiest server's.

    busy f64[servers + 1]: scratch; entry 0 is the collectives, 1 + s is server s.
    """
    for index in range(len(first) - 1):
        busy[:] = 0.0
        for message in range(first[index], first[index + 1]):
            owner = root[message] + 1
            code = message_class[message]
            busy[owner] += startup[code] + per_byte[code] * wire_bytes[message]
        most = 0.0
        for server in range(1, len(busy)):
            most = max(most, busy[server])
        sync[index] = busy[0] + most
