"""Whether strategies fit the devices' memory, and what would make one fit."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.errors import InvalidStrategy, NotSupported
from autosync.plan import PlanTable
from autosync.population import Population, encode
from autosync.simulator.extension_prediction import prediction_of, predictions
from autosync.simulator.memory.peak_memory import DomainMemory, device_memory_bytes, memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.sharded_strategy import fully_sharded
from autosync.strategy import (
    ReduceScatter,
    Strategy,
    VariableChoice,
    even_replicas,
    whole,
)


def check_memory(strategy: Strategy, domain: Domain) -> None:
    """Refuse what does not fit, with the numbers and with what would fit.

    Raises:
        InvalidStrategy: a rank's predicted peak is more than its device has; names the rank.
    """
    memory, devices = memory_of(domain), device_memory_bytes(domain)
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    (peaks,) = memory.peak_bytes(plans, population)
    for entry in strategy.extensions:
        prediction_of(entry.key).check_peaks(strategy, peaks)
    rank = int((peaks / devices).argmax())
    if peaks[rank] <= devices[rank]:
        return
    device = domain.cluster.device_of_rank()[rank]
    raise InvalidStrategy(
        f"the strategy does not fit: rank {rank} needs {_gb(peaks[rank])}, its device "
        f"({device.type}) has {_gb(devices[rank])}; values and gradients, buffers and optimizer "
        f"state take {_gb(peaks[rank] - _activations(memory, plans, population, rank))} of it.",
        thing="memory",
        value=float(peaks[rank]),
        remedy=" ".join(_ways_out(memory, plans, population, devices, strategy)),
    )


def fitting_rows(domain: Domain, population: Population) -> NDArray[np.int64]:
    """The strategies whose predicted peaks every device has."""
    devices = device_memory_bytes(domain)
    everything = np.arange(len(population.layout), dtype=np.int64)
    if np.isinf(devices).all():
        return everything
    memory = memory_of(domain)
    if not population.extension.any():
        share = max(replica.share for layout in population.layouts for replica in layout)
        if memory.most_bytes(share * domain.world_size) <= devices.min():
            return everything
    peaks = memory.peak_bytes(compile_plans_fast(population, domain), population)
    return np.flatnonzero((peaks <= devices).all(axis=1))


def most_peak_bytes(domain: Domain, strategies: Sequence[Strategy]) -> list[float]:
    """Predicted peak of each strategy, of the rank that needs most."""
    population = encode(list(strategies), domain)
    plans = compile_plans_fast(population, domain)
    peaks: list[float] = memory_of(domain).peak_bytes(plans, population).max(axis=1).tolist()
    return peaks


def largest_batch(
    memory: DomainMemory, plans: PlanTable, population: Population, devices: NDArray[np.float64]
) -> int:
    """The most examples a replica, up to the domain's, at which the one strategy fits; 0 where none
    does."""
    low, high = 0, memory.domain.batch_size
    while low < high:
        middle = (low + high + 1) // 2
        scale = middle / memory.domain.batch_size
        if (memory.peak_bytes(plans, population, scale) <= devices).all():
            low = middle
        else:
            high = middle - 1
    return low


def _activations(
    memory: DomainMemory, plans: PlanTable, population: Population, rank: int
) -> float:
    """What the peak loses without a batch."""
    (peaks,) = memory.peak_bytes(plans, population)
    (without,) = memory.peak_bytes(plans, population, 0.0)
    return float(peaks[rank] - without[rank])


def _ways_out(
    memory: DomainMemory,
    plans: PlanTable,
    population: Population,
    devices: NDArray[np.float64],
    strategy: Strategy,
) -> list[str]:
    domain = memory.domain
    found = []
    if batch := largest_batch(memory, plans, population, devices):
        found.append(f"It fits at a batch size of {batch} a replica (now {domain.batch_size}).")
    for prediction in predictions():
        found += prediction.ways_to_fit(memory, plans, population, strategy)
    peaks = memory.peak_bytes(plans, population)
    for words, sharded in _sharded(domain):
        others = encode([sharded], domain)
        with_shards = memory.peak_bytes(compile_plans_fast(others, domain), others)
        if with_shards.max() < peaks.max():
            fits = "fits" if (with_shards <= devices).all() else "does not fit either"
            found.append(f"With {words} it takes {_gb(with_shards.max())} and {fits}.")
    found.append(f"Devices of {_gb(peaks.max())} hold it (memory_gb in the cluster file).")
    if (memory.peak_bytes(plans, population, 0.0) <= devices).all():
        found.append("Activation checkpoints are not counted: with them it may fit.")
    return found


def _sharded(domain: Domain) -> Iterator[tuple[str, Strategy]]:
    """What holds less on a rank, with its words: ZeRO-1, a message a variable, and ZeRO-3; none
    where the domain does not allow them."""
    if not domain.optimizer.elementwise or domain.variables.sparse.any() or domain.world_size < 2:
        return
    choices = tuple(
        VariableChoice(v.name, whole(v.shape), (ReduceScatter(group, True),))
        for group, v in enumerate(domain.graph.variables)
    )
    yield "optimizer state in shards (zero1)", Strategy(choices, even_replicas(domain.world_size))
    with suppress(NotSupported):
        yield "parameters in shards as well (fsdp2)", fully_sharded(domain, domain.world_size)


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB"
