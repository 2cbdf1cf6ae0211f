"""What a strategy must satisfy to run on a domain and to synchronize it exactly. Imports documents
only."""

from autosync.extensions.offload.swap_verification import check_swap
from autosync.verification.strategy_verification import check_runnable, verify

__all__ = ["check_runnable", "check_swap", "verify"]
