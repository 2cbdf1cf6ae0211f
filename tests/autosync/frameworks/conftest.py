"""Ranks that the tests of a module share."""

from tests.autosync.runtime.conftest import pair

__all__ = ["pair"]
