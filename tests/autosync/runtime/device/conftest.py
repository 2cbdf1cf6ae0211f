"""Ranks that the tests of this folder share: a process that uses CUDA takes seconds to start.

On one GPU, NCCL ranks share it. With as many GPUs as ranks, each has one of its own.
"""

from collections.abc import Iterator

import pytest

from tests.autosync.runtime.ranks import Ranks, ranks


@pytest.fixture(scope="session")
def nccl_pair() -> Iterator[Ranks]:
    with ranks(2, way="nccl", keep_groups=True) as made:
        yield made


@pytest.fixture(scope="session")
def nccl_three() -> Iterator[Ranks]:
    with ranks(3, way="nccl", keep_groups=True) as made:
        yield made


@pytest.fixture(scope="session", params=["nccl-2", "nccl-3"])
def nccl(request: pytest.FixtureRequest) -> Ranks:
    name = "nccl_pair" if request.param == "nccl-2" else "nccl_three"
    pool: Ranks = request.getfixturevalue(name)
    return pool


@pytest.fixture(scope="session")
def gloo() -> Iterator[Ranks]:
    """Models on the GPU, messages through host memory."""
    with ranks(2, way="cuda", keep_groups=True) as made:
        yield made
