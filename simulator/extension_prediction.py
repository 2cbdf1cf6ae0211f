"""What the simulators ask of the extensions of strategies (`autosync.extensions`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.extensions.registry import EXTENSIONS, Entries, part_of
from autosync.plan import PlanTable
from autosync.population import Population
from autosync.strategy import Strategy

if TYPE_CHECKING:
    from autosync.simulator.memory.peak_memory import DomainMemory
    from autosync.simulator.memory.plan_memory import PlanMemory

F64 = NDArray[np.float64]
Rows = list[int]
"""Of a population: strategies that carry an entry of the extension that is asked."""


class Prediction:
    """Of one extension: `PREDICTION` in its `prediction.py`. This one changes nothing."""

    restates_domains = False
    """Whether a strategy with an entry is predicted as any other in a domain of its own
    (`restated`). Trials of such strategies teach nothing about the others."""

    keeps_gradients = False
    """Whether gradients live in tensors of their own beside the buffers of messages."""

    def restated(self, domain: Domain, population: Population, index: int) -> Domain:
        """The domain in which strategy `index` is predicted."""
        return domain

    def slowdowns(
        self, domain: Domain, population: Population, plans: PlanTable, rows: Rows
    ) -> F64:
        """`(rows,)`: how many times longer the slowest rank's forward and backward pass take."""
        return np.ones(len(rows))

    def step_seconds(
        self,
        domain: Domain,
        population: Population,
        plans: PlanTable,
        factors: F64,
        periods: F64,
    ) -> F64:
        """Seconds an iteration of all strategies, `(n,)`. factors: of the profiled compute.
        periods: seconds without the extension."""
        return periods

    def held_bytes(self, part: "PlanMemory", found: F64) -> F64:
        """`PlanMemory.held_bytes` of all strategies; `found`: without the extension."""
        return found

    def peak_bytes(
        self,
        memory: "DomainMemory",
        plans: PlanTable,
        population: Population,
        rows: Rows,
        batch_scale: float,
        found: F64,
    ) -> F64:
        """Peak bytes of every rank, `(rows, world)`; `found`: without the extension."""
        return found

    def check_peaks(self, strategy: Strategy, peaks: F64) -> None:
        """Raises InvalidStrategy where the peaks of its ranks, `(world,)`, are more than its entry
        allows."""

    def ways_to_fit(
        self, memory: "DomainMemory", plans: PlanTable, population: Population, strategy: Strategy
    ) -> Iterator[str]:
        """Sentences: how the extension makes a strategy fit the devices' memory. population: of
        this strategy alone."""
        return iter(())

    def account(self, domain: Domain, strategy: Strategy) -> list[str]:
        """Sentences: what its entry changes in what travels."""
        return []

    def features(self, population: Population) -> dict[str, F64]:
        """`(n,)` columns of the learned simulators' features, by name; asked of every extension."""
        return {}


def predictions() -> list[Prediction]:
    """Of all extensions."""
    return [prediction_of(key) for key in EXTENSIONS]


def carried_predictions(population: Population) -> list[tuple[Prediction, Rows]]:
    """Of the extensions that any strategy carries an entry of, with these strategies."""
    keys = {entry.key for entries in population.extensions for entry in entries}
    rows = {
        key: np.flatnonzero(population.carrying(EXTENSIONS[key].document)).tolist()
        for key in sorted(keys)
    }
    return [(prediction_of(key), own) for key, own in rows.items() if own]


def restated_domain(domain: Domain, population: Population, index: int) -> Domain:
    """The domain for strategy `index`; itself where no extension restates it."""
    for entry in population.extensions[population.extension[index]]:
        domain = prediction_of(entry.key).restated(domain, population, index)
    return domain


def restates_domain(entries: Entries) -> bool:
    """Whether a strategy that carries these is predicted in a domain of its own."""
    return any(prediction_of(entry.key).restates_domains for entry in entries)


def restated_strategies(population: Population) -> NDArray[np.bool_]:
    """`(n,)`: whether each is predicted in a domain of its own."""
    own = [restates_domain(entries) for entries in population.extensions]
    return np.array(own, dtype=np.bool_)[population.extension]


def extension_features(population: Population) -> dict[str, F64]:
    """`(n,)` columns of the learned simulators' features, by name."""
    columns: dict[str, F64] = {}
    for prediction in predictions():
        columns |= prediction.features(population)
    return columns


def slowdowns(domain: Domain, population: Population, plans: PlanTable) -> F64:
    """`(n,)`: how many times longer forward and backward passes take for extensions.

    Raises:
        InvalidStrategy: an extension cannot run a strategy so.
    """
    found = np.ones(len(population))
    for prediction, rows in carried_predictions(population):
        found[rows] *= prediction.slowdowns(domain, population, plans, rows)
    return found


def slowdown(domain: Domain, population: Population, plans: PlanTable, index: int) -> float:
    """`slowdowns` of strategy `index` alone."""
    found = 1.0
    for entry in population.extensions[population.extension[index]]:
        (own,) = prediction_of(entry.key).slowdowns(domain, population, plans, [index])
        found *= own
    return float(found)


def prediction_of(key: str) -> Prediction:
    found: Prediction = part_of(key, "prediction").PREDICTION
    return found
