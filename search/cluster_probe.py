"""`autosync probe`: what messages cost on a cluster, alone and among others.

First single messages (`autosync.trials.probes`); then whole iterations of a model
made for it, under strategies whose plans hold from one to hundreds of messages of each kind. The
costs are fitted to both (`autosync.simulator.fitting`).

`measure_overlap` records one trial to find by how much messages slow compute beside them.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.bundle import make_bundle
from autosync.cluster import Cluster
from autosync.domain import Domain, Profile
from autosync.errors import NotSupported
from autosync.graph import ModelGraph, Operation, Variable
from autosync.population import Population, encode
from autosync.search.designs.building_blocks import Choices, assemble, collective, everything, owned
from autosync.search.loop.outcome import OnEvent, TuningEvent
from autosync.search.loop.settings import Settings
from autosync.simulator.fitting.iteration_costs import CostFit, fit_costs
from autosync.simulator.fitting.message_costs import (
    fit_overlap_slowdown,
    with_message_costs,
    with_message_curves,
)
from autosync.strategy import AllReduce, ReduceScatter, Schedule, Strategy
from autosync.trials.contract import (
    Launcher,
    Pool,
    TrialFailed,
    TrialRequest,
    TrialResult,
    Workload,
)
from autosync.trials.probes import (
    REPEATS,
    brief_sizes,
    measure_messages,
    timing_pool,
    worker_counts,
)
from autosync.trials.request_names import ComputeDevice, ComputeKind
from autosync.units import MIB

VARIABLES = 128
OCTAVES = 12
"""The largest variable is 2^11 times the smallest, as in real models."""
RING_SECONDS = 0.06
"""Of an all-reduce of all gradients, as long as a probe's iteration really runs."""
MOST_GRADIENT_BYTES = 1024 * MIB
"""Of the model, which each rank holds several times. In `RING_SECONDS` nodes with eight ports of
400 Gbit/s sum up 13 GB."""
COMPUTE_SHARE = 0.5
"""Compute over ring seconds: gradients come one after another, and only some of it hides."""
EVERYTHING = 1 << 62
BRIEF_REPEATS = 3
MAX_ITERATIONS = {False: 12, True: 4}
"""Of the fit, by whether the probe is brief."""

OVERLAP_MESSAGES = 16
"""Of the trial, about: so many that some are under way during most of backward, and so few that
what each costs the processors does not count."""

Say = Callable[[str], None]


def probe_costs(
    launcher: Launcher,
    cluster: Cluster,
    byte_scale: float,
    time_scale: float,
    brief: bool = False,
    say: Say = lambda text: None,
    compute: ComputeKind = "waited",
    device: ComputeDevice = "cpu",
) -> CostFit:
    """The cluster with fitted costs and curves of its collectives, and how well the timeline then
    agrees.

    brief: for before a tuning. A third of the strategies (10 of 27, or 12 of 31 where a node holds
        several ranks), and fewer sizes, repeats and iterations.
    compute, device: of the trials that the costs are for; see `Workload`.
    Workers on this machine's loopback do not see the cluster's links, and the probe's iterations
    have compute to wait out but no kernels, so there the costs of single messages stand as they
    are.

    Raises:
        NotSupported, InaccurateLink: as `launcher.open`; or a worker failed as it timed messages,
            or fewer than three trials succeed.
        InvalidInput: fewer than three ranks.
    """
    worker_counts(cluster)
    domain = probing_domain(cluster, time_scale)
    workload = Workload(
        domain, byte_scale=byte_scale, time_scale=time_scale, compute=compute, device=device
    )
    with timing_pool(launcher, workload) as pool:
        say("timing single messages")
        sizes = brief_sizes(cluster, byte_scale / time_scale) if brief else ()
        try:
            samples = measure_messages(pool, cluster, sizes, BRIEF_REPEATS if brief else REPEATS)
        except TrialFailed as failure:
            raise NotSupported(
                f"single messages could not be timed: {failure.error.message}",
                thing="probe",
                value=cluster.name,
                remedy="Fix that, or tune without probing: costs are then assumed.",
            ) from None
        alone = with_message_curves(with_message_costs(cluster, samples), samples)
        if not pool.at_cluster_rates or compute == "kernels":
            nothing = np.empty(0)
            return CostFit(alone, 0.0, 0.0, nothing, nothing)
        population, seconds = measured(pool, domain, brief, say)
    say("fitting")
    return fit_costs(replace(domain, cluster=alone), population, seconds, MAX_ITERATIONS[brief])


def measured(
    pool: Pool, domain: Domain, brief: bool, say: Say
) -> tuple[Population, NDArray[np.float64]]:
    """The probing strategies that ran, and their seconds an iteration.

    Raises:
        NotSupported: fewer than three ran.
    """
    strategies = probing_strategies(domain, brief)
    ran, seconds = [], []
    for number, (name, strategy) in enumerate(strategies, start=1):
        request = TrialRequest(
            f"probe/{name}", make_bundle(strategy, domain), iterations=3 if brief else 5
        )
        result = pool.run(request)
        if result.step_seconds is None:
            why = result.error.message if result.error else "no reason given"
            say(f"{name} failed: {why}")
            continue
        say(f"{number} of {len(strategies)}: {name} {result.step_seconds * 1e3:.1f} ms")
        ran.append(strategy)
        seconds.append(result.step_seconds)
    if len(ran) < 3:
        raise NotSupported(
            f"only {len(ran)} of {len(strategies)} probing trials ran on {pool.description}.",
            thing="launcher",
            value=pool.description,
            remedy="Look at why they failed, above.",
        )
    return encode(ran, domain), np.array(seconds)


def probing_domain(cluster: Cluster, time_scale: float) -> Domain:
    """A chain of `VARIABLES` vectors of mixed sizes with little compute."""
    ranks = cluster.world_size
    rate = float(cluster.nic_bytes_per_second().min())
    summed_bytes_per_second = rate * ranks / (2 * (ranks - 1))
    total = min(RING_SECONDS / time_scale * summed_bytes_per_second, MOST_GRADIENT_BYTES)
    weights = [2.0 ** (7 * index % OCTAVES) for index in range(VARIABLES)]
    sizes = [max(1, math.ceil(total / 4 * weight / sum(weights))) for weight in weights]
    variables = tuple(Variable(f"v{i}", (size,)) for i, size in enumerate(sizes))
    operations = tuple(
        Operation(f"op{i}", "probe", 0, 0, 0, True, (i - 1,) if i else (), (i,))
        for i in range(VARIABLES)
    )
    backward = tuple(reversed(range(VARIABLES)))
    order = tuple(range(VARIABLES))
    graph = ModelGraph("probe", 1, operations, variables, backward, backward, order)
    each = COMPUTE_SHARE * total / summed_bytes_per_second / VARIABLES / 3
    forward, backwards = (each,) * VARIABLES, (2 * each,) * VARIABLES
    note = "nothing is computed"
    profile = Profile(cluster.fastest_device_type, 1, forward, backwards, 0.0, "estimated", note)
    return Domain(graph, cluster, profile)


def probing_strategies(domain: Domain, brief: bool = False) -> list[tuple[str, Strategy]]:
    """Every kind of message, from one to hundreds of them, by itself and among others; brief: the
    most telling ones."""
    total = domain.graph.size_bytes
    overlapped = Schedule("fifo", overlap_forward=True)
    found: list[tuple[str, Strategy]] = []

    def add(name: str, choices: Choices, schedule: Schedule | None = None, parts: int = 0) -> None:
        limit = {0: 0, 1: EVERYTHING}.get(parts, total // max(parts, 1))
        strategy = assemble(domain, choices, schedule=schedule, limit_bytes=limit)
        found.append((name, strategy))

    def sliced(parts: int) -> Schedule:
        return Schedule("priority", slice_bytes=max(4, total // parts), overlap_forward=True)

    ring, scattered = collective(domain, AllReduce(0)), collective(domain, ReduceScatter(0))
    tree = collective(domain, AllReduce(0, "tree"))
    balanced = owned(domain, everything(domain))
    for parts in (0, 4) if brief else (0, 16, 4, 1):
        suffix = f"in {parts}" if parts else "each alone"
        add(f"ring all-reduce, {suffix}", ring, None, parts)
        add(f"reduce-scatter and all-gather, {suffix}", scattered, None, parts)
        add(f"owners, {suffix}", balanced, None, parts)
        if parts and not brief:
            add(f"tree all-reduce, {suffix}", tree, None, parts)
            add(f"overlapped reduce-scatter, {suffix}", scattered, overlapped, parts)
    for slices in (64,) if brief else (16, 64, 192):
        add(f"ring all-reduce in {slices} slices", ring, sliced(slices), 4)
        add(f"reduce-scatter in {slices} slices", scattered, sliced(slices), 4)
    if not brief:
        add("owners, nearest use first", balanced, Schedule("priority", overlap_forward=True), 0)
    mixed: Choices = {
        index: (ring, scattered, balanced)[index % 3][index] for index in everything(domain)
    }
    add("three kinds, each alone", mixed, None, 0)
    add("three kinds, in 4, overlapped", mixed, overlapped, 4)
    if any(node.ranks > 1 for node in domain.cluster.nodes):
        inside = collective(domain, AllReduce(0, "hierarchical"))
        served = owned(domain, everything(domain), hierarchical=True)
        for parts in (0,) if brief else (0, 4):
            suffix = f"in {parts}" if parts else "each alone"
            add(f"hierarchical all-reduce, {suffix}", inside, None, parts)
            add(f"hierarchical owners, {suffix}", served, None, parts)
    return found


def measure_overlap(pool: Pool, domain: Domain, settings: Settings, on_event: OnEvent) -> Domain:
    """The domain with its cluster's `overlap_slowdown` as measured, or as it was where a trial
    cannot tell it, which an event says.

    pool: of workers that compute for real and record in host memory.
    """
    result = pool.run(overlap_request(domain, settings))
    slowdown = recorded_slowdown(result, domain)
    if slowdown is None:
        why = result.error.message if result.error else "no trial shows it"
        on_event(TuningEvent("opening", f"by how much messages slow compute is not known: {why}"))
        return domain
    on_event(
        TuningEvent("opening", f"compute is {slowdown:.0%} slower while messages are under way")
    )
    return replace(domain, cluster=replace(domain.cluster, overlap_slowdown=round(slowdown, 4)))


def overlap_request(domain: Domain, settings: Settings) -> TrialRequest:
    """A trial whose all-reduces are under way during most of backward; it may take as long as those
    of the search."""
    each_bytes = -(-domain.graph.size_bytes // OVERLAP_MESSAGES)
    strategy = assemble(domain, collective(domain, AllReduce(0)), limit_bytes=each_bytes)
    return TrialRequest(
        key="overlap",
        bundle=make_bundle(strategy, domain),
        warmup=settings.warmup,
        iterations=settings.iterations,
        timeout_seconds=settings.timeout_seconds * domain.accumulate,
        record=True,
    )


def recorded_slowdown(result: TrialResult, domain: Domain) -> float | None:
    """None where the trial failed or cannot tell."""
    return fit_overlap_slowdown([result.timeline] if result.timeline else [], domain)
