"""Checks that a strategy runs on a domain and synchronizes it exactly. Imports documents only."""

from autosync.verification.strategy_verification import check_runnable, check_slices, verify

__all__ = ["check_runnable", "check_slices", "verify"]
