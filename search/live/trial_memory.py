"""What a live tuning knows from an earlier one, and leaves for the next."""

from dataclasses import dataclass
from pathlib import Path

from autosync.atomic_write import replaced_atomically
from autosync.bundle import Bundle
from autosync.documents import to_json
from autosync.domain import Domain
from autosync.search.loop.earlier_trials import (
    EarlierTrials,
    known_from,
    read_earlier,
    trials_of,
    usable,
)
from autosync.search.loop.outcome import Outcome
from autosync.search.space import Space

Since = Bundle | EarlierTrials | str | Path


@dataclass(frozen=True, slots=True)
class TrialMemory:
    """since: of an earlier tuning, read already. keep: where this one's trials go."""

    since: Bundle | EarlierTrials | None
    keep: Path | None

    def earlier(self, domain: Domain, space: Space) -> EarlierTrials | None:
        """Raises InvalidInput where nothing of it can be used here."""
        if self.since is None:
            return None
        return usable(known_from(self.since, domain), domain, space)

    def save(self, outcome: Outcome) -> None:
        if self.keep is not None:
            with replaced_atomically(self.keep) as draft:
                draft.write_text(to_json(trials_of(outcome.ranked)))


def open_trial_memory(since: Since | None, keep: str | Path | None) -> TrialMemory:
    """Raises InvalidInput where `since` is no file of trials and no bundle."""
    read = read_earlier(since) if isinstance(since, str | Path) else since
    return TrialMemory(read, None if keep is None else Path(keep))
