"""A dataset's folder: written, read back, damaged; as pandas, in figures and as a datasheet."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from autosync.documents import text_hash, to_data, to_json
from autosync.errors import InvalidInput, NotFound
from autosync.population import decode
from autosync.simulator.dataset_description import KINDS, datasheet, summaries, trials_table
from autosync.simulator.runtime_dataset import (
    MeasuredDomain,
    load_dataset,
    read_trials,
    write_dataset,
)
from tests.simulator.measurements import (
    DESIGNED,
    SAMPLED,
    measured,
    rows_of,
    strategies_of,
    two_domains,
    write,
    write_small,
)


@pytest.fixture(scope="module")
def domains() -> list[MeasuredDomain]:
    return [measured(gbps, seed) for seed, gbps in enumerate((0.5, 0.956, 1.5))]


def test_a_dataset_comes_back_as_it_was_written(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    write(tmp_path, domains)
    found = {each.domain.id: each for each in load_dataset(tmp_path)}
    for each in domains:
        back = found[each.domain.id]
        seconds = {
            decode(each.population, i, each.domain).id: each.step_seconds[i]
            for i in range(len(each))
        }
        assert len(back) == len(seconds)
        for index in range(len(back)):
            identity = decode(back.population, index, back.domain).id
            assert back.step_seconds[index] == seconds[identity]
        assert back.noise == pytest.approx(each.noise, rel=0.2)


def test_domains_are_utf_8_whatever_the_locale(
    domains: list[MeasuredDomain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = domains[0].domain
    named = replace(domain, graph=replace(domain.graph, name="最速"))
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "latin-1")
    write(tmp_path, [replace(domains[0], domain=named)])
    assert load_dataset(tmp_path)[0].domain == named


def test_failed_strategies_are_left_out_and_counted(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    table = rows_of(domains[0])
    lost = table["strategy_id"].iloc[3]
    table.loc[(table["strategy_id"] == lost) & (table["pass"] == 2), "step_seconds"] = np.nan
    write_dataset(tmp_path, [domains[0].domain], table)
    [back] = load_dataset(tmp_path)
    assert (len(back), back.failed) == (59, 1)


def test_strategies_measured_once_count_without_a_noise_estimate(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    each = domains[0]
    table = rows_of(each)
    waiting = set(table["strategy_id"].iloc[:5])
    table = table[~(table["strategy_id"].isin(waiting) & (table["pass"] == 2))]
    write_dataset(tmp_path, [each.domain], table)
    [back] = load_dataset(tmp_path)
    assert back.second_seconds is not None
    assert (len(back), int(np.isnan(back.second_seconds).sum())) == (60, 5)
    assert np.isfinite(back.label_seconds).all()
    assert back.noise == pytest.approx(each.noise, rel=0.2)


def test_picks_alone_tell_no_noise(domains: list[MeasuredDomain]) -> None:
    count = len(domains[0])
    picks = replace(domains[0], origins=("pick/timeline",) * count, rounds=(1,) * count)
    assert picks.noise is None


def test_missing_files_and_columns_are_named(domains: list[MeasuredDomain], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"trials\.parquet"):
        load_dataset(tmp_path)
    table = rows_of(domains[0])
    with pytest.raises(InvalidInput, match="'spread'"):
        write_dataset(tmp_path, [domains[0].domain], table.drop(columns="spread"))
    with pytest.raises(InvalidInput, match="was not given"):
        write_dataset(tmp_path, [domains[1].domain], table)
    write_dataset(tmp_path, [domains[0].domain], table)
    (tmp_path / "domains" / f"{domains[0].domain.id}.json").unlink()
    with pytest.raises(NotFound, match=domains[0].domain.id):
        load_dataset(tmp_path)


def test_a_domain_that_was_changed_is_not_the_measured_one(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    first, other = (each.domain for each in domains[:2])
    write_dataset(tmp_path, [first], rows_of(domains[0]))
    file = tmp_path / "domains" / f"{first.id}.json"
    file.write_text(json.dumps(to_data(first), indent=2))
    assert load_dataset(tmp_path)[0].domain == first
    file.write_text(to_json(other))
    with pytest.raises(InvalidInput, match=f"holds another domain, {other.id}"):
        load_dataset(tmp_path)


def test_a_domain_may_have_the_text_of_an_earlier_version(
    domains: list[MeasuredDomain], tmp_path: Path
) -> None:
    """Which wrote, and so counted to its identity, what this one leaves out."""
    domain = domains[0].domain
    text = to_json(to_data(domain) | {"accumulate": 1})
    identity = text_hash(text)
    write_dataset(tmp_path, [domain], rows_of(domains[0]))
    for name in ("trials", "strategies"):
        file = tmp_path / f"{name}.parquet"
        pd.read_parquet(file).assign(domain=identity).to_parquet(file, index=False)
    (tmp_path / "domains" / f"{identity}.json").write_text(f"{text}\n")
    assert [each.domain for each in load_dataset(tmp_path)] == [domain]


def test_measurements_must_fit_their_strategies(domains: list[MeasuredDomain]) -> None:
    each = domains[0]
    with pytest.raises(InvalidInput, match="60 strategies have 3"):
        MeasuredDomain(each.domain, each.population, np.ones(3))
    with pytest.raises(InvalidInput, match="positive"):
        MeasuredDomain(each.domain, each.population, np.zeros(60))


def test_a_strategy_that_stands_twice_is_named(tmp_path: Path) -> None:
    write_small(tmp_path)
    file = tmp_path / "strategies.parquet"
    strategies = pd.read_parquet(file)
    pd.concat([strategies, strategies.head(1)]).to_parquet(file, index=False)
    with pytest.raises(InvalidInput, match="a strategy of a domain twice"):
        load_dataset(tmp_path)


def test_damaged_pandas_metadata_is_refused(tmp_path: Path) -> None:
    write_small(tmp_path)
    file = tmp_path / "trials.parquet"
    damaged = {b"pandas": b'{"columns": [{"name": "domain"}], "index_columns": []}'}
    pq.write_table(pq.read_table(file).replace_schema_metadata(damaged), file)
    with pytest.raises(InvalidInput, match=r"trials\.parquet.* is no Parquet table"):
        load_dataset(tmp_path)


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
