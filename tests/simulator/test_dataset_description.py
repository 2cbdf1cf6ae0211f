"""A dataset as pandas, in figures, and as a datasheet."""

from pathlib import Path

import pytest

from autosync.simulator.dataset_description import KINDS, datasheet, summaries, trials_table
from autosync.simulator.runtime_dataset import load_dataset, read_trials
from tests.simulator.measurements import (
    DESIGNED,
    SAMPLED,
    strategies_of,
    two_domains,
    write_small,
)

STRATEGIES = len(DESIGNED) + SAMPLED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dataset")
    write_small(made)
    return made


def test_every_pass_with_what_it_ran(folder: Path) -> None:
    table = trials_table(folder)
    assert len(table) == 2 * 2 * STRATEGIES
    assert set(table["cluster"]) == {"grid", "row"}
    assert (table[list(KINDS)].sum(axis=1) == table["shards"]).all()
    ddp = table[table["origin"] == "ddp"]
    assert set(ddp["order"]) == {"ddp"}
    assert set(ddp["all_reduce"]) == {6}
    assert set(table.loc[table["origin"] == "zero1", "reduce_scatter"]) == {6}
    assert set(table["compute_seconds"].round(6)) == {0.018}


def test_a_domain_in_figures(folder: Path) -> None:
    grid, row = summaries(load_dataset(folder), read_trials(folder))
    assert (grid.model, grid.cluster, grid.world_size) == ("chain", "grid", 4)
    assert (grid.strategies, grid.failed, grid.passes) == (STRATEGIES - 1, 1, 2 * STRATEGIES)
    assert (row.strategies, row.failed) == (STRATEGIES, 0)
    assert row.fastest_seconds == pytest.approx(0.1 * 1.02**0.5)
    assert row.ddp_seconds == pytest.approx(0.101)
    assert row.noise == pytest.approx(1.4826 * 0.0198, rel=1e-3)
    assert (row.byte_scales, row.time_scales) == ((0.125,), (2.0,))


def test_the_datasheet_holds_the_figures(folder: Path) -> None:
    text = datasheet(load_dataset(folder), read_trials(folder))
    assert f"2 domains, {2 * STRATEGIES - 1} strategies measured soundly" in text
    assert "| chain | row | 3.0% | 2.0% | - | 2.9% |" in text
    assert "- launcher: invented" in text
    assert "| 101.0 | " in text


def test_a_strategy_is_known_by_its_identity(folder: Path) -> None:
    table = trials_table(folder)
    made = {s.id for domain in two_domains() for s in strategies_of(domain).values()}
    assert set(table["strategy_id"]) == made
