"""A trained simulator: its card, and what it is among the versions."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from autosync.api.db.tables import SimulatorTrainingRow
from autosync.api.engine.registry import BUNDLED_VERSION, SIMULATORS
from autosync.api.engine.simulator_store import NAME_OF_VERSION, stored_card, version_in_use
from autosync.api.views.schemas import SimulatorVersion, Tuning
from autosync.api.views.simulator_versions_view import version_of_simulator
from autosync.bundled_data import data_file

if TYPE_CHECKING:
    from autosync.simulator.learned.checkpoint import CheckpointCard

BUNDLED_NAME = NAME_OF_VERSION.format(BUNDLED_VERSION)
"""Of the page of the simulator that comes with AutoSync; no stored one can be called so."""


@dataclass(frozen=True, slots=True)
class SimulatorAccount:
    """number: of its version; None where it was stored under a name of its own. version: how it
    was judged; None for the bundled one, too. tuning_id: the tuning at whose end it was trained.
    readable: whether this version of AutoSync can use it. size_bytes, created_at: None for the
    bundled one."""

    name: str
    number: int | None
    card: "CheckpointCard"
    version: SimulatorVersion | None
    tuning_id: str | None
    in_use: bool
    readable: bool
    size_bytes: int | None
    created_at: datetime | None

    @property
    def bundled(self) -> bool:
        return self.number == BUNDLED_VERSION


def simulator_account(session: Session, name: str) -> SimulatorAccount:
    """Of a stored simulator, or of the bundled one (`BUNDLED_NAME`); raises NotFound."""
    from autosync.simulator.learned.checkpoint import FILE, FOLDER, read_card
    from autosync.simulator.learned.features.feature_names import FEATURE_VERSION

    in_use = version_in_use(session)
    if name == BUNDLED_NAME:
        card = read_card(data_file(FOLDER, FILE))
        of_use = in_use == BUNDLED_VERSION
        return SimulatorAccount(name, BUNDLED_VERSION, card, None, None, of_use, True, None, None)
    row, card = stored_card(session, name)
    version = version_of_simulator(session, name)
    training = session.get_one(SimulatorTrainingRow, version.training_id) if version else None
    return SimulatorAccount(
        name=name,
        number=version.number if version else None,
        card=card,
        version=version,
        tuning_id=training.tuning_id if training else None,
        in_use=version is not None and version.number == in_use,
        readable=card.feature_version == FEATURE_VERSION,
        size_bytes=row.size_bytes,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
    )


def simulator_page(tuning: Tuning) -> str | None:
    """Name of the page of the simulator that ranks for a tuning; None where it learned nothing
    before (`timeline`)."""
    if tuning.simulator_version is not None:
        return NAME_OF_VERSION.format(tuning.simulator_version)
    return None if tuning.simulator in SIMULATORS else tuning.simulator
