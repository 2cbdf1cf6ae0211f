"""Measured tables that were damaged on their way."""

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from autosync.errors import InvalidInput
from autosync.simulator.evaluation.measured_dataset import load_dataset
from tests.simulator.evaluation.measurements import write_small


def test_a_strategy_that_stands_twice_is_named(tmp_path: Path) -> None:
    write_small(tmp_path)
    file = tmp_path / "strategies.parquet"
    strategies = pd.read_parquet(file)
    pd.concat([strategies, strategies.head(1)]).to_parquet(file, index=False)
    with pytest.raises(InvalidInput, match="a strategy of a domain twice"):
        load_dataset(tmp_path)


def test_what_pandas_wrote_of_its_columns_may_be_damaged(tmp_path: Path) -> None:
    write_small(tmp_path)
    file = tmp_path / "trials.parquet"
    damaged = {b"pandas": b'{"columns": [{"name": "domain"}], "index_columns": []}'}
    pq.write_table(pq.read_table(file).replace_schema_metadata(damaged), file)
    with pytest.raises(InvalidInput, match=r"trials\.parquet.* is no Parquet table"):
        load_dataset(tmp_path)
