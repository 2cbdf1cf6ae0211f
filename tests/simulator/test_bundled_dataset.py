"""The dataset that comes with AutoSync holds what its plan promises. In every run
`learned/test_bundled_simulator` reads one of its domains."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from autosync.bundled_data import data_folder
from autosync.search.collect.collection_log import PICK_ORIGINS
from autosync.search.collect.collection_plan import CollectionTarget, load_plan
from autosync.simulator.dataset_description import datasheet
from autosync.simulator.message_digests import digests_of
from autosync.simulator.runtime_dataset import MeasuredDomain, read_trials

pytestmark = pytest.mark.long

FOLDER = data_folder("runtimes")
PLAN = load_plan(FOLDER / "plan.yaml")
TARGETS = {f"{target.model}/{target.cluster}": target for target in PLAN.domains}


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    return read_trials(FOLDER)


def target_of(measured: MeasuredDomain) -> CollectionTarget:
    domain = measured.domain
    return TARGETS[f"{domain.graph.name}/{domain.cluster.name}"]


def test_what_is_there_of_the_plan_is_whole(bundled_dataset: list[MeasuredDomain]) -> None:
    names = [target_of(each).name for each in bundled_dataset]
    assert len(set(names)) == len(names)
    assert set(PLAN.pick_sources) <= set(names)
    for measured in bundled_dataset:
        target = target_of(measured)
        assert len(measured) - len(measured.picks) >= PLAN.strategies_of(target), target.name
        assert len(measured.picks) == target.picks, target.name


def test_choosers_have_picked_alike_in_every_round(bundled_dataset: list[MeasuredDomain]) -> None:
    for measured in bundled_dataset:
        chosen = Counter((measured.origins[i], measured.rounds[i]) for i in measured.picks)
        each = len(measured.picks) // PLAN.pick_rounds // len(PICK_ORIGINS)
        assert chosen == {
            (origin, number): each
            for origin in PICK_ORIGINS
            for number in range(1, PLAN.pick_rounds + 1)
            if each
        }


def test_no_pick_is_the_plan_of_another_strategy(bundled_dataset: list[MeasuredDomain]) -> None:
    for measured in bundled_dataset:
        digests = Counter(digests_of(measured.domain, measured.population))
        of_picks = digests_of(measured.domain, measured.population.take(measured.picks))
        assert {digests[digest] for digest in of_picks} <= {1}


def test_passes_are_those_of_the_plan(
    bundled_dataset: list[MeasuredDomain], trials: pd.DataFrame
) -> None:
    for measured in bundled_dataset:
        target = target_of(measured)
        rows = trials[(trials["domain"] == measured.domain.id) & (trials["pass"] > 0)]
        passes = rows.groupby(["occasion", "pass"])["strategy_id"].nunique()
        for occasion in range(1, target.occasions + 1):
            picks = len(measured.picks) if occasion == 1 else 0
            base = len(measured) - len(measured.picks)
            assert passes[occasion, 1] == passes[occasion, 2] == base + picks
        assert np.allclose(rows[["byte_scale", "time_scale"]].to_numpy(), target.scales)


def test_what_it_takes_to_repeat_it_is_noted(trials: pd.DataFrame) -> None:
    assert not trials[["launcher", "versions", "measured_at", "load"]].isna().any().any()


def test_the_datasheet_beside_it_is_that_of_the_data(
    bundled_dataset: list[MeasuredDomain], trials: pd.DataFrame
) -> None:
    assert (FOLDER / "README.md").read_text() == datasheet(bundled_dataset, trials)
