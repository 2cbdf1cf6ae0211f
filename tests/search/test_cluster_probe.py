"""Costs are found again from iterations that the timeline itself made up, and a real probe runs."""

from dataclasses import replace

import numpy as np
import pytest

from autosync.cluster import Cluster, Device, MessageCost, MessageKind
from autosync.codes import Op
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.population import Population, encode
from autosync.search.cluster_probe import probe_costs, probing_domain, probing_strategies
from autosync.simulator.fitting.iteration_costs import fit_costs
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.verification import verify
from tests.domains import grid_cluster

KINDS: tuple[MessageKind, ...] = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "all_to_all",
    "send_recv",
)


def invented(cluster: Cluster) -> Cluster:
    """Costs as measured on a testbed, about."""
    costs = tuple(
        MessageCost(kind, 1e-4, 1e-4, 5e-11, host_seconds=3e-4, host_seconds_per_byte=2e-10)
        for kind in KINDS
    )
    return replace(cluster, costs=costs)


def probing(cluster: Cluster, brief: bool = False) -> tuple[Domain, Population]:
    domain = probing_domain(cluster, 1.0)
    return domain, encode([s for _, s in probing_strategies(domain, brief)], domain)


@pytest.mark.parametrize("cluster", [grid_cluster(4), grid_cluster(2, 2)])
@pytest.mark.parametrize("brief", [False, True])
def test_the_strategies_run_and_hold_every_kind_from_one_to_hundreds(
    cluster: Cluster, brief: bool
) -> None:
    domain, population = probing(cluster, brief)
    for _, strategy in probing_strategies(domain, brief):
        verify(strategy, domain)
    grouped = cluster.world_size > len(cluster.nodes)
    expected = (12 if grouped else 10) if brief else (31 if grouped else 27)
    assert len(population) == expected  # as `probe_costs` says
    counts = np.diff(compile_plans_fast(population, domain).first)
    assert counts.min() <= 8
    assert counts.max() >= 128
    operations = set(compile_plans_fast(population, domain).operation.tolist())
    assert operations >= {Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER, Op.PUSH, Op.PULL}
    if not brief:
        assert operations >= {Op.REDUCE, Op.BROADCAST}


def test_fitted_costs_predict_what_made_the_measurements() -> None:
    cluster = grid_cluster(4, gbps=0.5)
    domain, population = probing(cluster)
    truth = replace(domain, cluster=invented(cluster))
    noise = np.random.default_rng(1).lognormal(0, 0.01, len(population))
    seconds = TimelineSimulator().predict(truth, population) * noise
    found = fit_costs(domain, population, seconds)
    assert found.residual < found.before / 2
    assert found.predicted == pytest.approx(seconds, rel=0.15)
    unseen, others = probing(grid_cluster(4, gbps=0.5), brief=True)
    carried = TimelineSimulator().predict(replace(unseen, cluster=found.cluster), others)
    real = TimelineSimulator().predict(replace(unseen, cluster=truth.cluster), others)
    assert carried == pytest.approx(real, rel=0.2)


def test_compute_is_stated_for_the_fastest_device() -> None:
    slow, fast = grid_cluster(2).nodes
    mixed = replace(grid_cluster(2), nodes=(slow, replace(fast, devices=(Device("v100"),))))
    assert probing_domain(mixed, 1.0).profile.device == "v100"


def test_a_fit_needs_a_positive_measurement_for_each() -> None:
    domain, population = probing(grid_cluster(4), brief=True)
    with pytest.raises(InvalidInput, match="measurements"):
        fit_costs(domain, population, np.ones(len(population) - 1))
    with pytest.raises(InvalidInput, match="are not positive"):
        fit_costs(domain, population, np.zeros(len(population)))


def test_unshaped_links_give_the_costs_of_single_messages() -> None:
    lines: list[str] = []
    found = probe_costs(LocalLauncher(), grid_cluster(3), 1 / 64, 1.0, True, lines.append)
    assert {cost.kind for cost in found.cluster.costs} == set(KINDS)
    assert not len(found.measured)
    assert all(cost.host_seconds == 0.0 for cost in found.cluster.costs)
    with pytest.raises(InvalidInput, match="2 ranks"):
        probe_costs(LocalLauncher(), grid_cluster(2), 1.0, 1.0)


def test_a_worker_that_fails_over_a_message_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many bytes that no worker holds them."""
    sizes = (1 << 50,)
    monkeypatch.setattr("autosync.search.cluster_probe.brief_sizes", lambda *_: sizes)
    with pytest.raises(NotSupported, match="single messages could not be timed"):
        probe_costs(LocalLauncher(), grid_cluster(3), 1 / 64, 1.0, True)


@pytest.mark.usefixtures("testbed_possible")
def test_shaped_links_are_probed_by_whole_iterations() -> None:
    lines: list[str] = []
    launcher = TestbedLauncher(check=False, repeats=0)
    found = probe_costs(launcher, grid_cluster(3, gbps=0.2), 1.0, 1.0, True, lines.append)
    assert len(found.measured) == len(found.predicted) >= 7
    assert found.residual < found.before
    assert {c.residual for c in found.cluster.costs if c.kind == "all_reduce"} == {found.residual}
    assert any("ring all-reduce, each alone" in line for line in lines)
