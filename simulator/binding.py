"""Which resource binds an iteration: the one that shortens it most where it is faster."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.simulator.cost.compute_time import slowest_factors
from autosync.simulator.extension_prediction import restated_domain, slowdown
from autosync.simulator.timeline.sharded_timeline import sent_in_host_memory
from autosync.simulator.timeline.timeline_arrays import ComputeArrays, CostArrays
from autosync.simulator.timeline.timeline_simulator import TimelineInputs, timeline_inputs
from autosync.torch_engine import FullyShard

FASTER = 0.9
"""Times the seconds of a resource that is tried faster."""

COMPUTE, STARTUPS, NOTHING = "compute", "startups of messages", "nothing alone"


@dataclass(frozen=True, slots=True)
class Binding:
    """resource: compute, startups of messages, or a link by its name. share: by how much of the
    resource's gain the iteration gets shorter, in [0, 1]; 1: by all of it."""

    resource: str
    share: float


@dataclass(frozen=True, slots=True)
class AssumedIteration:
    """One strategy that can be played at other costs and compute.

    inputs: of the strategy alone, at its index in `plans`. factor: of the slowest rank. batches: of
    an update.
    """

    plans: PlanTable
    index: int
    inputs: TimelineInputs
    factor: float
    engine: FullyShard | None
    batches: int = 1

    def seconds(
        self,
        costs: CostArrays | None = None,
        compute: ComputeArrays | None = None,
        factor: float | None = None,
    ) -> float:
        """Of an iteration at these; by default at its own."""
        inputs = replace(
            self.inputs, costs=costs or self.inputs.costs, compute=compute or self.inputs.compute
        )
        slowest = self.factor if factor is None else factor
        before = self.batches - 1
        if self.engine is None:
            passes = slowest * (inputs.compute.forward + inputs.compute.backward)
            return float(inputs.play(np.array([slowest])).seconds[0]) + before * passes
        played = self.plans, self.index, slowest, self.engine
        seconds = inputs.play_sharded(*played).step_seconds
        if before:
            seconds += before * inputs.play_sharded(*played, before_last=True).step_seconds
        return seconds

    @property
    def busiest(self) -> tuple[str, float]:
        """The link that its messages hold longest, and for how many seconds of an update."""
        plans = self.plans
        if self.engine is not None and self.inputs.costs.in_order:
            plans = replace(plans, operation=sent_in_host_memory(plans.operation))
        return self.inputs.network.busiest(plans, self.rows, self.times)

    @property
    def rows(self) -> slice:
        """Of its messages."""
        return slice(int(self.plans.first[self.index]), int(self.plans.first[self.index + 1]))

    @property
    def times(self) -> NDArray[np.int64]:
        """How often each of its messages travels in an update, `(messages,)`: under `fully_shard`
        the batches before the last send what is not kept between them."""
        before, gate = self.plans.before[self.rows], self.plans.gate[self.rows]
        if self.engine is None:
            again = np.zeros(len(before), dtype=np.bool_)
        elif not self.engine.kept_between_batches:
            again = np.ones(len(before), dtype=np.bool_)
        elif self.engine.kept_between_batches == "gradients":
            again = (before >= 0) | (gate >= 0)  # it gathers, and reduces nothing
        else:
            again = before >= 0
        return np.where(again, self.batches, 1)


def assumed_iterations(
    plans: PlanTable, population: Population, domain: Domain
) -> Iterator[AssumedIteration]:
    """Of every strategy of compiled plans; each is to be played before the next is taken."""
    shared = timeline_inputs(plans, domain)
    for index in range(len(plans)):
        own = restated_domain(domain, population, index)
        inputs = shared if own is domain else timeline_inputs(plans, own)
        factor = slowest_factors(own, population.layouts)[population.layout[index]]
        yield AssumedIteration(
            plans,
            index,
            inputs.of_strategy(index),
            float(factor * slowdown(own, population, plans, index)),
            population.engines[population.engine[index]],
            domain.accumulate,
        )


def assumed_iteration(
    plans: PlanTable, population: Population, domain: Domain, index: int
) -> AssumedIteration:
    """Strategy `index` of compiled plans."""
    return next(islice(assumed_iterations(plans, population, domain), index, None))


def binding_of(iteration: AssumedIteration) -> Binding:
    """What shortens the iteration most where it is 10 % faster."""
    costs, compute = iteration.inputs.costs, iteration.inputs.compute
    own = iteration.seconds()
    swift = compute._replace(update=FASTER * compute.update, rebuild=FASTER * compute.rebuild)
    others = {
        COMPUTE: iteration.seconds(compute=swift, factor=FASTER * iteration.factor),
        STARTUPS: iteration.seconds(
            costs._replace(
                startup=FASTER * costs.startup, host=FASTER * costs.host, ahead=FASTER * costs.ahead
            )
        ),
        iteration.busiest[0]: iteration.seconds(at_network_speed(costs, FASTER, startups=False)),
    }
    resource = min(others, key=lambda name: others[name])
    share = (1.0 - others[resource] / own) / (1.0 - FASTER)
    return Binding(resource if share > 0 else NOTHING, float(np.clip(share, 0.0, 1.0)))


def at_network_speed(costs: CostArrays, factor: float, startups: bool = True) -> CostArrays:
    """Costs at which bytes, and where asked startups, take `factor` times their seconds."""
    slowed: NDArray[np.float64] = factor * costs.per_byte
    other = costs._replace(per_byte=slowed, copy=factor * costs.copy, link=factor * costs.link)
    return other._replace(startup=factor * costs.startup) if startups else other
