"""Checks that a strategy runs on a domain and synchronizes it exactly. Imports documents only."""

from autosync.verification.strategy_verification import check_runnable, verify

__all__ = ["check_runnable", "verify"]
