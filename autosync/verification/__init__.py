"""What a strategy must satisfy to run on a domain and to synchronize it exactly. Imports documents
only."""

from autosync.verification.strategy_verification import check_runnable, verify

__all__ = ["check_runnable", "verify"]
