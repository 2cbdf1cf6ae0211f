"""What a reader must know before believing a tuning's figures: shown beside every headline."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.tables import TrialRow
from autosync.api.views.tuning_schemas import Tuning

UNSHAPED = "unshaped links"
"""What a launcher's description says when links run at whatever speed this machine has."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """label: of a badge. reason: a sentence."""

    label: str
    reason: str


NOT_SHAPED = Caveat(
    "links not shaped",
    "Messages ran at this machine's loopback speed, not at the cluster's: times and ranking do not "
    "stand for the cluster.",
)
ESTIMATED = Caveat(
    "compute estimated",
    "Compute times are an estimate from the device's data sheet, not a measurement.",
)


def caveats_of(session: Session, tunings: Sequence[Tuning]) -> dict[str, tuple[Caveat, ...]]:
    """By the tuning's id."""
    unshaped = _unshaped(session, [tuning.id for tuning in tunings])
    return {
        tuning.id: tuple(
            caveat
            for caveat, holds in (
                (NOT_SHAPED, tuning.launcher == "local" or tuning.id in unshaped),
                (ESTIMATED, tuning.profile_source == "estimated"),
            )
            if holds
        )
        for tuning in tunings
    }


def _unshaped(session: Session, tuning_ids: list[str]) -> set[str]:
    """Tunings of which a trial ran over links that nobody shaped, wherever it was asked to run."""
    query = select(TrialRow.tuning_id).where(TrialRow.launcher.contains(UNSHAPED))
    return set(session.scalars(query.where(TrialRow.tuning_id.in_(tuning_ids)).distinct()))
