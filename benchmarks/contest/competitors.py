"""Who competes with AutoSync: torch's own engines, and what tunes one size by trials.

A competitor is asked for its next setting, given all it has measured. Sizes are of the unscaled
model; the testbed scales every one of them by s, as it does the messages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from autosync.documents import content_hash
from autosync.domain import Domain
from autosync.errors import NotSupported
from autosync.exports.ddp import ddp_buckets
from autosync.search.designs import known_designs, torch_engines
from autosync.search.designs.building_blocks import (
    assemble,
    everything,
    into_pieces,
    owned,
    returning_gradients,
    uncut,
)
from autosync.search.designs.design_table import fitted, hand_designed
from autosync.search.loop.fusion_tuning import speed_improvement, speeds_over_sizes
from autosync.search.space import Space
from autosync.strategy import AllReduce, Schedule, Strategy, VariableChoice, even_replicas
from autosync.torch_engine import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
from autosync.units import MIB

NO_SIZE = 0.0


@dataclass(frozen=True, slots=True)
class TriedSetting:
    """size_mib: of a bucket, buffer or partition; NO_SIZE where there is none to choose.
    step_seconds: None where the trial failed."""

    number: int
    size_mib: float
    step_seconds: float | None


Build = Callable[[Domain, float], Strategy]
"""The strategy of a size in MiB."""
Ask = Callable[[Domain, Sequence[TriedSetting], int], float | None]
"""The next size, given what was tried and a seed; None: there is nothing left to try."""


@dataclass(frozen=True, slots=True)
class Competitor:
    """mode: of `benchmarks.workers`, who runs it. trials: at the most. label: of a setting, by
    default its size. tries_all: it has a list of settings and tries all, whatever the budget."""

    name: str
    sentence: str
    build: Build
    ask: Ask
    mode: str = "plan"
    trials: int = 60
    label: Callable[[Domain, float], str] | None = None
    tries_all: bool = False

    def trials_within(self, budget: int) -> int:
        """How many of its trials count when everybody has so many."""
        return self.trials if self.tries_all else min(self.trials, budget)

    def label_of(self, domain: Domain, size_mib: float) -> str:
        if self.label is not None:
            return f"{self.name} {self.label(domain, size_mib)}"
        return f"{self.name} {size_mib:.3g}" if self.trials > 1 else self.name


def once(domain: Domain, tried: Sequence[TriedSetting], seed: int) -> float | None:
    return None if tried else NO_SIZE


def plain_ddp(domain: Domain, size_mib: float) -> Strategy:
    return known_designs.ddp(domain)


def once_where_it_shards(domain: Domain, tried: Sequence[TriedSetting], seed: int) -> float | None:
    """Never of a model whose variables tell no modules to gather."""
    runs = fitted(domain, Space(), torch_engines.fsdp2) is not None
    return once(domain, tried, seed) if runs else None


def plain_fsdp2(domain: Domain, size_mib: float) -> Strategy:
    return torch_engines.fsdp2(domain)


def ddp_of_size(domain: Domain, size_mib: float) -> Strategy:
    """DDP with `bucket_cap_mb=size_mib`; at any size but its default torch makes the first bucket
    as large as the others."""
    limit = int(size_mib * MIB)
    first = DDP_FIRST_BUCKET_BYTES if limit == DDP_BUCKET_BYTES else limit
    group = {
        index: number
        for number, bucket in enumerate(ddp_buckets(domain.graph, (first, limit)))
        for index in bucket
    }
    choices = tuple(
        VariableChoice(variable.name, uncut(variable), (AllReduce(group[index]),))
        for index, variable in enumerate(domain.graph.variables)
    )
    replicas = even_replicas(domain.world_size)
    return Strategy(choices, replicas, Schedule("ddp", slice_bytes=limit)).canonical()


SMALLEST_MIB, LARGEST_MIB = 1.0, 100.0
"""DeAR's range of buffers, for DDP's buckets, too."""


def optuna_size(domain: Domain, tried: Sequence[TriedSetting], seed: int) -> float | None:
    """Optuna's default sampler (TPE) over `bucket_cap_mb`, on a logarithmic scale, which begins at
    torch's default. A failed trial is told as failed."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not tried:
        return DDP_BUCKET_BYTES / MIB
    sampler = optuna.samplers.TPESampler(seed=1000 * seed + len(tried))
    study = optuna.create_study(sampler=sampler)
    scale = optuna.distributions.FloatDistribution(SMALLEST_MIB, LARGEST_MIB, log=True)
    for each in tried:
        failed = each.step_seconds is None
        study.add_trial(
            optuna.trial.create_trial(
                params={"bucket_cap_mb": each.size_mib},
                distributions={"bucket_cap_mb": scale},
                value=each.step_seconds,
                state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
            )
        )
    return float(study.ask({"bucket_cap_mb": scale}).params["bucket_cap_mb"])


def _optuna() -> Any:
    """Raises NotSupported where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise NotSupported(
            "the competitor ddp_optuna needs optuna.",
            thing="optuna",
            remedy="Install it (pip install optuna), or leave the competitor out (--competitors).",
        ) from error
    return optuna


def dear_of_size(domain: Domain, size_mib: float) -> Strategy:
    return known_designs.dear_fused(domain, int(size_mib * MIB))


def servers_of_size(domain: Domain, size_mib: float) -> Strategy:
    """Pieces of one size on owners balanced by bandwidth, nearest next use first, as ByteScheduler
    sends them."""
    cut = into_pieces(int(size_mib * MIB))
    choices = owned(domain, everything(domain), cut, by_bandwidth=True)
    return assemble(domain, choices, schedule=Schedule("priority", overlap_forward=True))


def byteps_of_size(domain: Domain, size_mib: float) -> Strategy:
    """The same, but owners send sums back as soon as they have them, as BytePS' do."""
    cut = into_pieces(int(size_mib * MIB))
    choices = owned(domain, everything(domain), cut, by_bandwidth=True)
    schedule = Schedule("priority", overlap_forward=True, gather="when_idle")
    return assemble(domain, returning_gradients(domain, choices), schedule=schedule)


def byteps_in_nodes_of_size(domain: Domain, size_mib: float) -> Strategy:
    """The same, and ranks of a node reduce among themselves first, as BytePS' local roots do."""
    cut = into_pieces(int(size_mib * MIB))
    choices = owned(domain, everything(domain), cut, by_bandwidth=True, hierarchical=True)
    schedule = Schedule("priority", overlap_forward=True, gather="when_idle")
    return assemble(domain, returning_gradients(domain, choices), schedule=schedule)


@lru_cache(maxsize=8)
def bundled_designs(domain: Domain) -> tuple[tuple[str, Strategy], ...]:
    """Names and strategies of all hand-designed ones that run on the domain, DDP left out, which
    competes by itself."""
    return tuple(hand_designed(domain, Space())[1:])


def next_design(domain: Domain, tried: Sequence[TriedSetting], seed: int) -> float | None:
    """The place in `bundled_designs`, each once."""
    return float(len(tried)) if len(tried) < len(bundled_designs(domain)) else None


def design_at(domain: Domain, place: float) -> Strategy:
    return bundled_designs(domain)[int(place)][1]


def design_name(domain: Domain, place: float) -> str:
    return bundled_designs(domain)[int(place)][0]


SIZES = 32
"""Sizes that a Gaussian process tells apart, as in `search.loop.fusion_tuning`."""


def _of_size(build: Build, size_mib: float, domain: Domain) -> Strategy:
    return build(domain, size_mib)


@lru_cache(maxsize=8)
def distinct_sizes(domain: Domain, build: Build, least: float, most: float) -> tuple[float, ...]:
    """The sizes in MiB, smallest first, whose strategies differ and run on the domain."""
    found: dict[str, float] = {}
    for size in np.geomspace(least, most, SIZES):
        strategy = fitted(domain, Space(), partial(_of_size, build, float(size)))
        if strategy is not None:
            found.setdefault(content_hash(strategy), float(size))
    return tuple(found.values())


def gaussian_size(
    build: Build,
    least: float,
    most: float,
    begin: float,
    domain: Domain,
    tried: Sequence[TriedSetting],
    seed: int,
) -> float | None:
    """Bayesian optimization as DeAR does it (IV-B): a Gaussian process of the speed over the size's
    logarithm, and the size of the largest expected improvement. It begins at the size nearest to
    `begin`; no size comes twice, so it may end early."""
    taken = {each.size_mib for each in tried}
    free = [size for size in distinct_sizes(domain, build, least, most) if size not in taken]
    if not free:
        return None
    sound = [each for each in tried if each.step_seconds]
    if not sound:
        return min(free, key=lambda size: abs(np.log(size / begin)))
    sizes = np.array([each.size_mib for each in sound])
    speeds = -np.log(np.array([each.step_seconds for each in sound], dtype=np.float64))
    mean, std = speeds_over_sizes(sizes, speeds, np.array(free))
    return free[int(np.argmax(speed_improvement(mean, std, speeds)))]


COMPETITORS = (
    Competitor("ddp", "torch's DDP as it comes", plain_ddp, once, trials=1),
    Competitor("ddp_optuna", "torch's DDP, Optuna over bucket_cap_mb", ddp_of_size, optuna_size),
    Competitor(
        "dear_bo",
        "DeAR, Bayesian optimization of its buffer",
        dear_of_size,
        partial(gaussian_size, dear_of_size, SMALLEST_MIB, LARGEST_MIB, 25.0),
    ),
    Competitor(
        "servers_bo",
        "partitioned, load-balanced servers, Bayesian optimization of the partition",
        servers_of_size,
        partial(gaussian_size, servers_of_size, 0.5, 64.0, 4.0),
    ),
    Competitor(
        "byteps_bo",
        "the same with gradients returned as by BytePS",
        byteps_of_size,
        partial(gaussian_size, byteps_of_size, 0.5, 64.0, 4.0),
    ),
    Competitor(
        "byteps_in_nodes_bo",
        "the same with reduction inside of nodes first, where these have several ranks",
        byteps_in_nodes_of_size,
        partial(gaussian_size, byteps_in_nodes_of_size, 0.5, 64.0, 4.0),
    ),
    Competitor(
        "designs",
        "every bundled design once",
        design_at,
        next_design,
        label=design_name,
        tries_all=True,
    ),
    Competitor(
        "zero", "torch's DDP with ZeroRedundancyOptimizer", plain_ddp, once, "zero", trials=1
    ),
    Competitor("fsdp2", "torch's FSDP2 as it comes", plain_fsdp2, once_where_it_shards, trials=1),
)
