"""Versions of the trained simulator: which is in use, what each is, and bringing one back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from autosync.api.db.database import Database
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import SimulatorPromotionRow, SimulatorRow, SimulatorVersionRow
from autosync.api.engine.registry import BUNDLED_VERSION
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.errors import NotSupported

if TYPE_CHECKING:
    from autosync.simulator.learned.learned_simulators import LearnedSimulator

NAME_OF_VERSION = "version-{}"


def version_in_use(session: Session) -> int:
    """The number of the last one promoted that this version of AutoSync can read; the bundled one
    where there is none."""
    from autosync.simulator.learned.features.feature_names import FEATURE_VERSION

    query = (
        select(SimulatorPromotionRow.number, SimulatorRow.feature_version)
        .outerjoin(SimulatorVersionRow, SimulatorVersionRow.number == SimulatorPromotionRow.number)
        .outerjoin(SimulatorRow, SimulatorRow.name == SimulatorVersionRow.simulator)
        .order_by(SimulatorPromotionRow.id.desc())
        .limit(1)
    )
    row = session.execute(query).first()
    readable = row is not None and row.feature_version == FEATURE_VERSION
    return row.number if row is not None and readable else BUNDLED_VERSION


def versions(
    session: Session, limit: int | None = None, below: int | None = None
) -> Sequence[SimulatorVersionRow]:
    """The newest first. limit: how many; by default all. below: only numbers below this one."""
    query = select(SimulatorVersionRow).order_by(SimulatorVersionRow.number.desc()).limit(limit)
    if below is not None:
        query = query.where(SimulatorVersionRow.number < below)
    return session.scalars(query).all()


def next_number(session: Session) -> int:
    return 1 + (session.scalar(select(func.max(SimulatorVersionRow.number))) or 0)


def promote(database: Database, number: int) -> None:
    """Use this version from now on, for tunings that begin later.

    Raises:
        NotFound: there is no such version. NotSupported: it reads features of another version.
    """
    from autosync.simulator.learned.features.feature_names import FEATURE_VERSION

    with database.writing() as session:
        if number != BUNDLED_VERSION:
            row = session.get(SimulatorVersionRow, number)
            if row is None:
                known = [BUNDLED_VERSION, *(each.number for each in versions(session))]
                remedy = f"There are: {', '.join(map(str, known))}."
                raise not_found("version", str(number), remedy)
            simulator = session.get_one(SimulatorRow, row.simulator)
            if simulator.feature_version != FEATURE_VERSION:
                raise NotSupported(
                    f"version {number} reads features of version {simulator.feature_version}, "
                    f"this is version {FEATURE_VERSION}.",
                    thing="version",
                    value=number,
                    remedy="Train a new one: POST /v1/simulators/trainings.",
                )
        session.add(SimulatorPromotionRow(number=number))


def trained_version(session: Session, number: int, name: str, domain: Domain) -> "LearnedSimulator":
    """Those members of a version for which `name` stands, for a domain. What knows nothing of the
    domain's backend is one that has learned nothing yet."""
    from autosync.simulator.learned.checkpoint import (
        MEMBERS_OF,
        CheckpointCard,
        default_simulator,
        knows_backend,
        restore,
    )
    from autosync.simulator.learned.learned_simulators import gaussian_simulator

    if number == BUNDLED_VERSION:
        return default_simulator(domain, name)
    row = session.get_one(SimulatorVersionRow, number)
    whole = (undefer(SimulatorRow.card), undefer(SimulatorRow.weights))
    query = select(SimulatorRow).where(SimulatorRow.name == row.simulator).options(*whole)
    simulator = session.scalars(query).one()
    card = from_json(CheckpointCard, simulator.card, source="card")
    if not knows_backend(card, domain.cluster):
        return gaussian_simulator()
    return restore(card, simulator.weights, simulator.name, MEMBERS_OF[name])
