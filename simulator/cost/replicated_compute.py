"""Compute of one device alone, as one of many replicas takes it."""

from dataclasses import replace
from math import log, sqrt

import numpy as np

from autosync.domain import Domain
from autosync.graph import Variable
from autosync.simulator.cost.fitted_constants import Constants


def with_replication_costs(domain: Domain, constants: Constants) -> Domain:
    """A domain profiled on one device alone, with what replication adds to its compute.

    The slowest of many devices is waited for, and every gradient passes once more through its
    device's port (copies and sums that are no message), as far as that does not run beside compute.
    It is added where the gradient becomes ready, and delays it.
    """
    graph, alone = domain.graph, domain.profile
    slowest = 1.0 + straggler_slowdown(domain.world_size, constants.straggler_share)
    exposed = exposed_pass_seconds(domain, constants)
    size_bytes = [gradient_bytes(variable) for variable in graph.variables]
    passed = np.zeros(len(graph.operations))
    np.add.at(passed, list(graph.gradient_after), exposed * np.divide(size_bytes, sum(size_bytes)))
    forward = np.multiply(alone.forward_seconds, slowest)
    backward = np.multiply(alone.backward_seconds, slowest) + passed
    profile = replace(
        alone,
        forward_seconds=tuple(forward.tolist()),
        backward_seconds=tuple(backward.tolist()),
        note=f"{alone.note}; the slowest of {domain.world_size} takes {slowest - 1:.1%} longer, "
        f"gradients pass once more in {exposed * 1e3:.1f} ms",
    )
    return replace(domain, profile=profile)


def straggler_slowdown(workers: int, straggler_share: float) -> float:
    """How much longer than the mean device the slowest takes.

    The expected largest of m normal deviates grows as the root of 2 ln m.
    """
    return straggler_share * sqrt(2.0 * log(workers)) if workers > 1 else 0.0


def exposed_pass_seconds(domain: Domain, constants: Constants) -> float:
    """One more pass of all gradients through a device's port, less what runs beside compute."""
    rates = [node.intra_bandwidth_gbps for node in domain.cluster.nodes if node.ranks > 0]
    slowest = min(rate or constants.intra_bandwidth_gbps for rate in rates)
    pass_seconds = sum(map(gradient_bytes, domain.graph.variables)) * 8 / (slowest * 1e9)
    hidden = constants.hidden_share * domain.compute_seconds
    return max(0.0, pass_seconds - hidden)


def gradient_bytes(variable: Variable) -> float:
    """Of a sparse gradient the rows that an iteration touches."""
    share = variable.touched_rows / variable.shape[0] if variable.sparse else 1.0
    return variable.size_bytes * share
