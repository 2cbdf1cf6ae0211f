"""Trained simulators: those that are stored, their versions, trainings and cards."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.lookup import found
from autosync.api.db.tables import SimulatorRow, SimulatorTrainingRow, SimulatorVersionRow
from autosync.api.engine.registry import BUNDLED_VERSION, SIMULATORS
from autosync.api.engine.simulator_store import NAME_OF_VERSION, stored_card, version_in_use
from autosync.api.views.paging import NEWEST_FIRST, SortKey, newest, sorted_page
from autosync.api.views.schemas import (
    Simulators,
    SimulatorTraining,
    SimulatorTrainings,
    SimulatorVersion,
    SimulatorVersions,
    TrainedSimulator,
    columns_of,
)
from autosync.api.views.tuning_schemas import Tuning
from autosync.bundled_data import data_file

if TYPE_CHECKING:
    from autosync.simulator.learned.checkpoint import CheckpointCard

BUNDLED_NAME = NAME_OF_VERSION.format(BUNDLED_VERSION)
"""Of the page of the simulator that comes with AutoSync; no stored one can be called so."""
BY_NAME = {"name": SortKey(SimulatorRow.name, str, unique=True)}
BY_NUMBER = {"created": SortKey(SimulatorVersionRow.number, int, unique=True)}


def simulators(
    session: Session, limit: int | None, cursor: str | None = None, *, versions: bool = True
) -> Simulators:
    """Trained simulators by name, and the bundled ones. limit: None for all. cursor: `next` of the
    page before. versions: with those that have a list of their own."""
    query = select(SimulatorRow)
    if not versions:
        of_a_version = SimulatorRow.name.startswith(NAME_OF_VERSION.format(""), autoescape=True)
        query = query.where(~of_a_version)
    rows, following = sorted_page(session, query, BY_NAME, "name", SimulatorRow.name, limit, cursor)
    return Simulators(
        items=[TrainedSimulator.model_validate(row) for row, *_ in rows],
        bundled=list(SIMULATORS),
        next=following,
    )


def simulator(session: Session, name: str) -> TrainedSimulator:
    """One that was just stored."""
    return TrainedSimulator.model_validate(session.get_one(SimulatorRow, name))


def simulator_versions(
    session: Session, limit: int | None = None, cursor: str | None = None
) -> SimulatorVersions:
    """The newest first, and which is in use. limit: by default all. cursor: `next` of the page
    before.

    Raises:
        InvalidInput: the cursor is of another list.
    """
    query, tie = select(SimulatorVersionRow), SimulatorVersionRow.simulator
    rows, following = sorted_page(session, query, BY_NUMBER, NEWEST_FIRST, tie, limit, cursor)
    return SimulatorVersions(
        in_use=version_in_use(session),
        items=[_version(session, row) for row, *_ in rows],
        next=following,
    )


def simulator_trainings(
    session: Session, limit: int, cursor: str | None = None
) -> SimulatorTrainings:
    """The newest first; as `simulator_versions`."""
    rows, following = newest(session, SimulatorTrainingRow, limit, cursor)
    return SimulatorTrainings(items=[_training(session, row) for row in rows], next=following)


def simulator_training(session: Session, training_id: str) -> SimulatorTraining:
    """Raises NotFound."""
    known = session.get(SimulatorTrainingRow, training_id) if training_id.isalnum() else None
    remedy = "GET /v1/simulators/trainings lists them."
    return _training(session, found(known, "training", training_id, remedy))


def _version(session: Session, row: SimulatorVersionRow) -> SimulatorVersion:
    simulator = session.get_one(SimulatorRow, row.simulator)
    known = columns_of(row, SimulatorVersion)
    return SimulatorVersion(**known, domains=simulator.domains, trials=simulator.trials)


def _training(session: Session, row: SimulatorTrainingRow) -> SimulatorTraining:
    version = select(SimulatorVersionRow.number).where(SimulatorVersionRow.training_id == row.id)
    known = columns_of(row, SimulatorTraining)
    return SimulatorTraining(**known, version=session.scalar(version))


@dataclass(frozen=True, slots=True)
class SimulatorAccount:
    """A trained simulator's page. number: of its version; None where it was stored under a name of
    its own. version: how it was judged; None for the bundled one, too. tuning_id: the tuning at
    whose end it was trained. readable: whether this version of AutoSync can use it. size_bytes,
    created_at: None for the bundled one. kept_parents: the card's parents that have pages; others
    were removed."""

    name: str
    number: int | None
    card: "CheckpointCard"
    version: SimulatorVersion | None
    tuning_id: str | None
    in_use: bool
    readable: bool
    size_bytes: int | None
    created_at: datetime | None
    kept_parents: tuple[str, ...] = ()

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
    query = select(SimulatorVersionRow).where(SimulatorVersionRow.simulator == name)
    numbered = session.scalars(query).first()
    version = None if numbered is None else _version(session, numbered)
    training = session.get_one(SimulatorTrainingRow, version.training_id) if version else None
    pages = _with_pages(session, card.parents)
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
        kept_parents=tuple(each for each in card.parents if each in pages),
    )


def simulator_page(session: Session, tuning: Tuning) -> str | None:
    """Name of the page of the simulator that ranks for a tuning; None where it learned nothing
    before (`timeline`), or was removed since."""
    name = tuning.simulator
    if tuning.simulator_version is not None:
        name = NAME_OF_VERSION.format(tuning.simulator_version)
    return name if name in _with_pages(session, (name,)) else None


def _with_pages(session: Session, names: Sequence[str]) -> set[str]:
    stored = select(SimulatorRow.name).where(SimulatorRow.name.in_(names))
    return {BUNDLED_NAME, *session.scalars(stored)}
