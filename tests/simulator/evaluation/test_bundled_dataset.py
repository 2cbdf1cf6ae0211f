"""The dataset that comes with AutoSync holds what its plan promises."""

import numpy as np
import pandas as pd
import pytest

from autosync.bundled_data import data_folder
from autosync.search.collect.collection_plan import CollectionTarget, load_plan
from autosync.simulator.evaluation.datasheet import datasheet_of
from autosync.simulator.evaluation.measured_dataset import MeasuredDomain, load_dataset, read_trials

FOLDER = data_folder("runtimes")
PLAN = load_plan(FOLDER / "plan.yaml")
TARGETS = {f"{target.model}/{target.cluster}": target for target in PLAN.domains}


@pytest.fixture(scope="module")
def domains() -> list[MeasuredDomain]:
    return load_dataset(FOLDER)


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    return read_trials(FOLDER)


def target_of(measured: MeasuredDomain) -> CollectionTarget:
    domain = measured.domain
    return TARGETS[f"{domain.graph.name}/{domain.cluster.name}"]


def test_every_domain_of_the_plan_is_there_whole(domains: list[MeasuredDomain]) -> None:
    assert sorted(map(len, domains))[0] >= PLAN.strategies
    assert {target_of(each).name for each in domains} == {each.name for each in PLAN.domains}


def test_passes_are_those_of_the_plan(domains: list[MeasuredDomain], trials: pd.DataFrame) -> None:
    for measured in domains:
        target = target_of(measured)
        rows = trials[(trials["domain"] == measured.domain.id) & (trials["pass"] > 0)]
        passes = rows.groupby(["occasion", "pass"])["strategy_id"].nunique()
        for occasion in range(1, target.occasions + 1):
            assert passes[occasion, 1] == passes[occasion, 2] == len(measured)
        assert np.allclose(rows[["byte_scale", "time_scale"]].to_numpy(), target.scales)


def test_what_it_takes_to_repeat_it_is_noted(trials: pd.DataFrame) -> None:
    assert not trials[["launcher", "versions", "measured_at", "load"]].isna().any().any()


def test_the_datasheet_beside_it_is_that_of_the_data(
    domains: list[MeasuredDomain], trials: pd.DataFrame
) -> None:
    assert (FOLDER / "README.md").read_text() == datasheet_of(domains, trials)
