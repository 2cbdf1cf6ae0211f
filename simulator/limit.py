"""The limit: a lower bound on the iteration of any allowed strategy in a domain."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autosync.allowed import Allowed
from autosync.cluster import Cluster
from autosync.domain import Domain
from autosync.simulator.cost.compute_time import compute_factors
from autosync.simulator.cost.synchronizer_costs import costs_of_synchronizers
from autosync.simulator.preemptive_schedule import longest_tail_first
from autosync.strategy import even_replicas

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limit:
    """No strategy iterates in fewer seconds than the largest of three bounds on an iteration with
    one batch; of an update with several, the compute of those before the last comes on top.

    compute_seconds: of the slowest device, or of all together when shares may be uneven.
    transfer_seconds: of the bytes that some link must carry whatever synchronizers are chosen.
    schedule_seconds: those bytes sent between each gradient's readiness and its next use.
    tightest: which of the three it is.
    """

    seconds: float
    compute_seconds: float
    transfer_seconds: float
    schedule_seconds: float

    @property
    def last_batch_seconds(self) -> float:
        """Without the batches before the last one of an update."""
        return max(self.compute_seconds, self.transfer_seconds, self.schedule_seconds)

    @property
    def tightest(self) -> str:
        bounds = {
            "compute": self.compute_seconds,
            "transfer": self.transfer_seconds,
            "schedule": self.schedule_seconds,
        }
        return max(bounds, key=lambda name: bounds[name])


def iteration_limit(domain: Domain, allowed: Allowed | None = None) -> Limit:
    """The limit of a domain over the allowed strategies; all exact, synchronous ones by default.

    Where strategies may lag, gradients need not arrive before the next forward pass: compute and
    transfer alone bound them. Where modules may be placed, ranks take any part of the compute and
    variables need not travel: compute alone does.

    Startups and updates are left out and messages may be cut anywhere, so plans stay above it. The
    cluster's `compute_slowdown` is left out, too: it is an average over the messages that were
    measured, and those of another allowed strategy may slow compute less.
    """
    allowed = allowed or Allowed()
    factors = compute_factors(domain, even_replicas(domain.world_size))
    slowest = float(factors.max())
    if allowed.uneven_shares or allowed.may_divide_model:
        # Shares in proportion to speed: all finish together, at the harmonic mean's pace.
        slowest = len(factors) / float((1.0 / factors).sum())
    compute = slowest * (domain.timing.forward_seconds + domain.timing.backward_seconds)
    before = (domain.accumulate - 1) * compute
    if allowed.may_divide_model:
        return Limit(before + compute, compute, 0.0, 0.0)
    needs = least_transfer(domain, allowed)
    schedule = 0.0
    if not (allowed.may_lag or (allowed.uneven_shares and np.ptp(factors) > 0)):
        ready, tails = _windows(domain, allowed, float(factors.min()), slowest)
        schedule = longest_tail_first(ready, needs, tails)
    transfer = float(needs.sum())
    beside = 0.0 if allowed.may_lag else before  # late updates travel beside all batches
    seconds = max(before + compute, beside + transfer, beside + schedule)
    return Limit(seconds, compute, transfer, schedule)


def _windows(domain: Domain, allowed: Allowed, fastest: float, slowest: float) -> tuple[F64, F64]:
    """When each variable can first be sent, from the slowest rank's start of backward, and what
    that rank still computes once it is there; both `(V,)`."""
    timing = domain.timing
    # A faster rank starts backward earlier, by at most what it gains in forward.
    lead = (slowest - fastest) * timing.forward_seconds
    ready = fastest * timing.ready_seconds[domain.variables.ready] - lead
    used = timing.forward_start[domain.variables.first_use]
    if not allowed.overlap_forward:
        used = np.zeros_like(used)
    tails: F64 = slowest * (timing.forward_seconds - used)
    return ready, tails


def least_transfer(domain: Domain, allowed: Allowed) -> F64:
    """Seconds of link time that each variable needs whatever synchronizer is chosen, `(V,)`.

    A linear program mixes synchronizers per class of variables so that the busiest link is busy
    least. Its dual prices, one per link and adding up to 1, turn all links into one machine: a
    variable takes at least min over synchronizers of price . load of that machine's time, and the
    machine does at most one second's work in a second. Right for any prices, so the solver's
    tolerance is safe.
    """
    costs = costs_of_synchronizers(replace(domain, cluster=_without_links(domain.cluster)), allowed)
    classes, _, resources = costs.load.shape
    size_bytes = domain.variables.size_bytes.astype(np.float64)
    total = np.bincount(costs.class_of, weights=size_bytes, minlength=classes)
    suited = np.isfinite(costs.load[:, :, 0])
    columns = np.argwhere(suited)
    seconds = costs.load[suited] * total[columns[:, 0], None]
    seconds /= seconds.max() or 1.0  # the solver's tolerance is no share; prices stay the same
    each = np.zeros((classes, len(columns) + 1))
    each[columns[:, 0], np.arange(len(columns))] = 1.0
    from scipy.optimize import linprog  # loaded by what asks for a limit alone

    solved = linprog(
        np.append(np.zeros(len(columns)), 1.0),
        A_ub=np.column_stack([seconds.T, -np.ones(resources)]),
        b_ub=np.zeros(resources),
        A_eq=each,
        b_eq=np.ones(classes),
        method="highs",
    )
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    prices /= prices.sum()
    priced = np.where(suited, np.nan_to_num(costs.load, posinf=0.0) @ prices, np.inf)
    needs: F64 = priced.min(axis=1)[costs.class_of] * size_bytes
    return needs


def _without_links(cluster: Cluster) -> Cluster:
    """Each stated link becomes room on both NICs, so that no ring around a slow link is missed.
    What passes such a link may not cross the spine, whose rate then bounds nothing."""
    if not cluster.links:
        return cluster
    extra = {node.address: 0.0 for node in cluster.nodes}
    for link in cluster.links:
        for address in link.nodes:
            extra[address] += link.bandwidth_gbps
    nodes = tuple(
        replace(node, bandwidth_gbps=node.bandwidth_gbps + extra[node.address])
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes, links=(), oversubscription=1.0)
