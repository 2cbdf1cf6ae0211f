"""The version that answers name, in a clone that is not installed, too."""

import re
from importlib.metadata import PackageNotFoundError

import pytest

from autosync.environment import own_version


def test_a_clone_that_is_not_installed_reads_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = own_version()
    assert re.fullmatch(r"\d+(\.\d+)+", installed)

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", absent)
    own_version.cache_clear()
    try:
        assert own_version() == installed
    finally:
        own_version.cache_clear()
