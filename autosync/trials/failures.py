"""The reason why a rank's part of a trial failed, and the cause among several ranks' failures."""

from collections.abc import Mapping

from autosync.errors import AutosyncError, BudgetTooSmall, DeviceMemoryExceeded
from autosync.runtime.transport.base import SynchronizationFailed
from autosync.trials.commands import PEER_LOST, CommandFailed, FailureKind
from autosync.trials.contract import TrialError
from autosync.trials.machine import reports_lack_of_memory

CAUSES_FIRST: tuple[FailureKind, ...] = (
    "out_of_memory",
    "over_budget",
    "refused",
    "crashed",
    "timeout",
    PEER_LOST,
)
"""Kinds by how likely they are the cause: a crash may be a consequence of the kinds before it, a
timeout or a lost peer of any kind."""

TIMEOUT_WORDS = ("timed out", "application timeout")
"""Of gloo's errors: of an operation, and of others on the pair that it closed."""
LOST_WORDS = ("connection", "broken pipe")
"""Of gloo's errors, once a peer has gone: what the system said of a read or a write."""


class IterationsTookTooLong(Exception):
    """The iterations of a trial took longer than they may."""


def error_kind(error: BaseException) -> FailureKind:
    """Refusals leave the ranks as they were. Of a broken process group torch raises RuntimeErrors;
    the connections of a user's own step, to a data source for instance, fail with OSErrors."""
    if isinstance(error, IterationsTookTooLong):
        return "timeout"
    if isinstance(error, BudgetTooSmall):
        return "over_budget"
    message = str(error).lower()
    full = isinstance(error, MemoryError | DeviceMemoryExceeded)
    if full or reports_lack_of_memory(message):
        return "out_of_memory"
    failed = isinstance(error, SynchronizationFailed)
    if failed or isinstance(error, RuntimeError):
        if any(words in message for words in TIMEOUT_WORDS):
            return "timeout"
        if failed or any(words in message for words in LOST_WORDS):
            return PEER_LOST
    return "refused" if isinstance(error, AutosyncError) else "crashed"


def failure_of(error: BaseException, seconds: float = 0.0) -> CommandFailed:
    """seconds: after the begin of the command."""
    message = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
    return CommandFailed(error_kind(error), message, seconds)


def first_cause(failures: Mapping[int, CommandFailed]) -> tuple[int, TrialError]:
    """The rank whose failure is the probable cause, the earliest of equal ones, and the error of
    the trial. Ranks begin a trial at different moments, so times alone do not show the cause."""
    rank = min(
        failures, key=lambda rank: (CAUSES_FIRST.index(failures[rank].kind), failures[rank].seconds)
    )
    kind, message = failures[rank].kind, failures[rank].message
    return rank, TrialError("crashed" if kind == PEER_LOST else kind, f"rank {rank}: {message}")
