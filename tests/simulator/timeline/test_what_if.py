"""What-ifs: who is not played again takes as long as before."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cluster import Backend
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline import what_if
from autosync.simulator.timeline.timeline_arrays import CostArrays
from autosync.simulator.timeline.what_if import FAMILIES, WHAT_IFS, timeline_times, what_ifs
from tests.domains import chain_graph, domain_of, grid_cluster

SHAPES = ((300, 64), (64,), (128, 64), (128,), (10, 128), (10,))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_only_strategies_that_pay_a_changed_cost_are_played_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit what playing all of them under every change finds."""
    cluster = replace(grid_cluster(2, 2), backend=backend)
    domain = domain_of(chain_graph(SHAPES, factor_rows=2), cluster)
    population = sample(domain, Space(whole_below_bytes=1000), 0, 60, 0)
    plans = compile_plans_fast(population, domain)
    seconds = timeline_times(plans, population, domain).seconds
    found = what_ifs(plans, population, domain, seconds)

    def everywhere(one: CostArrays, other: CostArrays) -> NDArray[np.bool_]:
        return np.ones(len(one.startup), dtype=np.bool_)

    monkeypatch.setattr(what_if, "_differ", everywhere)
    np.testing.assert_array_equal(found, what_ifs(plans, population, domain, seconds))
    for name, operations in FAMILIES.items():
        of_family = np.isin(plans.operation, operations)
        owner = np.repeat(np.arange(len(plans)), np.diff(plans.first))
        without = np.bincount(owner, weights=of_family, minlength=len(plans)) == 0
        column = found[:, WHAT_IFS.index(f"startup_{name}")]
        assert without.any()
        assert (column[without] == 0).all()
        assert (column[~without] != 0).any()
