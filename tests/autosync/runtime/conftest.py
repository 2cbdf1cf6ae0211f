"""Ranks that the tests of a module share."""

from collections.abc import Iterator

import pytest

from tests.autosync.runtime.ranks import Ranks, ranks


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with ranks(2) as made:
        yield made


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with ranks(3) as made:
        yield made


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with ranks(4) as made:
        yield made


@pytest.fixture(scope="module", params=["staged", "one order"])
def as_on_gpus(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Two, whose messages go the way of a GPU's, with host memory as the device."""
    with ranks(2, way=request.param) as made:
        yield made
