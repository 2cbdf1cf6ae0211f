"""The dataset that comes with AutoSync, and a pause of the garbage collector, which takes almost
half of the time of what makes a million objects."""

import gc
from collections.abc import Iterator

import pytest

from autosync.bundled_data import data_folder
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def bundled_dataset() -> list[MeasuredDomain]:
    gc.disable()
    try:
        return load_dataset(data_folder("runtimes"))
    finally:
        gc.enable()
