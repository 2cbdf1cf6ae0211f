"""Ranks that the tests of a module share."""

from tests.autosync.runtime.conftest import pair, three

__all__ = ["pair", "three"]
