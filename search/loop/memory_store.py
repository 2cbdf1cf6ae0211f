"""A store that lives as long as its process."""

from collections.abc import Sequence

from autosync.errors import InvalidInput
from autosync.search.loop.tuning_store import Proposal
from autosync.trials.contract import TrialResult


class MemoryStore:
    """`tuning_store.Store` without a database: for one-off searches that need no resuming."""

    def __init__(self) -> None:
        self._proposals: dict[str, Proposal] = {}
        self._trials: dict[str, TrialResult] = {}

    def proposals(self) -> Sequence[Proposal]:
        return tuple(self._proposals.values())

    def trials(self) -> Sequence[TrialResult]:
        return tuple(self._trials.values())

    def propose(self, proposals: Sequence[Proposal]) -> None:
        for proposal in proposals:
            self._proposals.setdefault(proposal.key, proposal)

    def record(self, result: TrialResult) -> None:
        if result.key in self._trials:
            raise InvalidInput(
                f"trial {result.key!r} was recorded before.", thing="trial", value=result.key
            )
        self._trials[result.key] = result
