"""The dataset that comes with AutoSync."""

import pytest

from autosync.bundled_data import data_folder
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset


@pytest.fixture(scope="session")
def bundled_dataset() -> list[MeasuredDomain]:
    return load_dataset(data_folder("runtimes"))
