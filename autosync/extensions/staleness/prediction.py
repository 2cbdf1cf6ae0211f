"""What late updates change: seconds an iteration, and the memory of gradients under way."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.codes import Op
from autosync.domain import Domain
from autosync.extensions.registry import entry_of
from autosync.extensions.staleness.document import Staleness
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.cost.network import network_of
from autosync.simulator.extension_prediction import Prediction
from autosync.simulator.memory.plan_memory import PlanMemory
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_arrays import ComputeArrays
from autosync.simulator.timeline.timeline_simulator import (
    busiest_link_seconds,
    simulate,
    timeline_inputs,
)
from autosync.strategy import Strategy

F64 = NDArray[np.float64]


def iterations_of(population: Population) -> NDArray[np.int64]:
    """`(n,)`: by how many iterations each strategy's updates may be late; 0 of synchronous ones."""
    found = [entry_of(entries, Staleness) for entries in population.extensions]
    late = [entry.iterations if entry is not None else 0 for entry in found]
    return np.array(late, dtype=np.int64)[population.extension]


class StalenessPrediction(Prediction):
    keeps_gradients = True

    def step_seconds(
        self,
        domain: Domain,
        population: Population,
        plans: PlanTable,
        factors: F64,
        periods: F64,
    ) -> F64:
        """Servers are sent updates when a step has ended. The messages of an iteration take c
        seconds without compute beside them, and with a staleness of s they are needed s iterations
        later: so c may take s iterations, as long as compute and the busiest link allow. Startups
        of messages are not among what is busy.
        """
        late = iterations_of(population)
        if not late.any():
            return periods
        compute_seconds = factors * domain.profile.compute_seconds + domain.profile.update_seconds
        inputs = timeline_inputs(plans, domain)
        idle = replace(inputs, compute=_no_compute(inputs.compute))
        alone = idle.play(factors, np.flatnonzero(late), np.zeros(len(late))).seconds
        exposed = alone / np.maximum(late, 1)
        lagging = np.maximum(_least_seconds(plans, domain, compute_seconds), exposed)
        return np.where(late > 0, lagging, periods)

    def held_bytes(self, part: PlanMemory, found: F64) -> F64:
        """Each rank has the whole optimizer state, the values before a step, and for each iteration
        that may be under way its updates and buffers for the answers (`client.ServerClient`). An
        owner has its values, in the type of sums, and for each other rank an update and an answer
        (`server.ShardServer`)."""
        late = iterations_of(part.population)[:, None]
        pushes, peers = part.plans.operation == Op.PUSH, part.domain.world_size - 1
        everywhere = part.domain.optimizer.state_tensors + 1 + 2 * (late + 1.0)
        owned = part.at_owner(pushes, part.sum_bytes + 2 * peers * part.flat_bytes)
        return np.where(late > 0, everywhere * part.model_bytes + owned, found)

    def features(self, population: Population) -> dict[str, F64]:
        return {"staleness": iterations_of(population).astype(np.float64)}

    def account(self, domain: Domain, strategy: Strategy) -> list[str]:
        """Its seconds: an explanation's parts are those of an iteration that waits for updates."""
        late = strategy.extension(Staleness)
        assert late is not None
        population = encode([strategy], domain)
        (seconds,) = simulate(compile_plans_fast(population, domain), population, domain).tolist()
        return [
            f"With updates up to {late.iterations} iterations late an iteration takes "
            f"{seconds * 1e3:.1f} ms; its predicted parts are those of one that waits for updates."
        ]


PREDICTION = StalenessPrediction()


def _no_compute(compute: ComputeArrays) -> ComputeArrays:
    return compute._replace(
        forward_start=np.zeros_like(compute.forward_start),
        forward=0.0,
        backward=0.0,
        ready=np.zeros_like(compute.ready),
        update=np.zeros_like(compute.update),
        rebuild=np.zeros_like(compute.rebuild),
    )


def _least_seconds(plans: PlanTable, domain: Domain, compute_seconds: F64) -> F64:
    """`(n,)`: what an iteration takes however far messages lag behind.

    The busiest link is held for b seconds. Of compute c that runs meanwhile, a slowdown of s
    lengthens every second to 1 + s: with all b beside compute that adds b s / (1 + s); what of b
    is not beside compute adds itself, which is more.
    """
    network = network_of(domain.cluster, plans.teams)
    busiest, slowdown = busiest_link_seconds(plans, network), network.compute_slowdown
    return np.maximum(busiest, compute_seconds + busiest * slowdown / (1.0 + slowdown))
