"""Trained simulators: stored under names in the database, and found by them.

What is stored was checked to be what its card says. A name means the same tensors for ever: to
give it to others, it is removed first, which a tuning that needs it prevents."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer
from sqlalchemy.sql.base import ExecutableOption

from autosync.api.db.database import Database
from autosync.api.db.document_store import insert_new
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import (
    ACTIVE,
    WAITING,
    SimulatorPromotionRow,
    SimulatorRow,
    SimulatorVersionRow,
    TuningRow,
)
from autosync.api.engine.database_store import clean
from autosync.api.engine.registry import (
    BUNDLED_VERSION,
    LEARNED,
    RETIRED,
    SIMULATORS,
    refuse_retired,
    simulator_named,
)
from autosync.documents import to_json
from autosync.errors import InvalidInput, NotSupported
from autosync.simulator.simulator_contract import Simulator
from autosync.units import MIB

if TYPE_CHECKING:
    from autosync.simulator.learned.checkpoint import CheckpointCard
    from autosync.simulator.learned.learned_simulator import LearnedSimulator


NAME_OF_VERSION = "version-{}"


def version_in_use(session: Session) -> int:
    """The number of the last one promoted; the bundled one where there is none, or this version of
    AutoSync cannot read it."""
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


def lock_version_in_use(session: Session) -> int:
    """As `version_in_use`; the version is not removed before the transaction ends."""
    number = version_in_use(session)
    if number == BUNDLED_VERSION or _lock_version(session, number) is not None:
        return number
    return lock_version_in_use(session)  # it was removed since


def lock_usable_version(session: Session, number: int) -> int:
    """This version, where it is kept and this version of AutoSync can read it; else the one in use.
    It is not removed before the transaction ends."""
    from autosync.simulator.learned.features.feature_names import FEATURE_VERSION

    if number == BUNDLED_VERSION or _lock_version(session, number) == FEATURE_VERSION:
        return number
    return lock_version_in_use(session)


def _lock_version(session: Session, number: int) -> int | None:
    """The version of the features that it reads; it is not removed before the transaction ends.
    None where it is not there."""
    query = (
        select(SimulatorRow.feature_version)
        .join(SimulatorVersionRow, SimulatorVersionRow.simulator == SimulatorRow.name)
        .where(SimulatorVersionRow.number == number)
    )
    return session.scalar(query.with_for_update(read=True, key_share=True, of=SimulatorRow))


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
            features = _lock_version(session, number)
            if features is None:
                known = [BUNDLED_VERSION, *(each.number for each in versions(session))]
                remedy = f"There are: {', '.join(map(str, known))}."
                raise not_found("version", str(number), remedy)
            if features != FEATURE_VERSION:
                raise NotSupported(
                    f"version {number} reads features of version {features}, "
                    f"this is version {FEATURE_VERSION}.",
                    thing="version",
                    value=number,
                    remedy="Train a new one: POST /v1/simulators/trainings.",
                )
        session.add(SimulatorPromotionRow(number=number))


# Checkpoints are imported where one is read: a service without any need not load them.

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}", re.ASCII)
LISTED = 500
"""Of a list, where nobody asks for more or fewer."""
LARGEST_CARD_BYTES = MIB
"""A card with a hundred source domains has a hundredth of it."""


def store_simulator(database: Database, name: str, card: bytes, weights: bytes) -> bool:
    """Store a checkpoint, the two files of `save_checkpoint`; whether it is new under this name.

    Raises:
        InvalidInput: the name cannot be used, the files are no checkpoint or not one of each
            other, or it was trained on other features than this version's.
        NotSupported: the name is another checkpoint's.
    """
    from autosync.simulator.learned.checkpoint import parse_card, restore

    check_name(name)
    if len(card) > LARGEST_CARD_BYTES:
        raise InvalidInput(
            f"the card has {len(card)} bytes; the limit is {LARGEST_CARD_BYTES}.",
            thing="card",
            value=len(card),
            remedy="Give the .json that lies beside the tensors.",
        )
    parsed = parse_card(card)
    restore(parsed, weights, name)
    text = to_json(parsed)
    with database.writing() as session:
        new = insert_checkpoint(session, name, parsed, weights)
        row = _row_with_files(session, name)
        if (row.card, row.weights) != (text, weights):
            raise NotSupported(
                f"the name {name!r} is another simulator's.",
                thing="simulator",
                value=name,
                remedy="Choose another name, or remove that one first.",
            )
    return new


def insert_checkpoint(session: Session, name: str, card: "CheckpointCard", weights: bytes) -> bool:
    """Store a checkpoint whose tensors are those of its card; False where the name is taken."""
    return insert_new(
        session,
        SimulatorRow,
        name=name,
        kind=card.kind,
        feature_version=card.feature_version,
        domains=len(card.sources),
        trials=card.trials,
        accuracy=card.accuracy,
        unseen=clean(card.unseen),
        size_bytes=len(weights),
        card=to_json(card),
        weights=weights,
    )


def check_name(name: str) -> None:
    """Raises InvalidInput where a simulator cannot be called so."""
    reserved = (*SIMULATORS, *RETIRED, "versions", "trainings")
    of_a_version = name.startswith(NAME_OF_VERSION.format(""))
    if NAME.fullmatch(name) and name not in reserved and not of_a_version:
        return
    raise InvalidInput(
        f"a simulator cannot be called {name[:40]!r}.",
        thing="simulator",
        value=name[:40],
        remedy="Use 1 to 32 lower-case letters, digits, dots, hyphens and underscores, a letter or "
        f"digit first, but none of {', '.join(reserved)}, nor {NAME_OF_VERSION.format('N')}.",
    )


def list_simulators(
    session: Session, limit: int | None = LISTED, after: str = ""
) -> Sequence[SimulatorRow]:
    """Without their cards and tensors, by name. limit: None for all. after: only names behind this
    one."""
    query = select(SimulatorRow).where(SimulatorRow.name > after).order_by(SimulatorRow.name)
    return session.scalars(query.limit(limit)).all()


def simulator_of(session: Session, name: str, number: int | None = None) -> Simulator:
    """The simulator of a name: of the learned one that version, by default the one in use; one that
    was stored, as it was saved.

    Raises:
        NotFound: neither; lists what there is.
        InvalidInput: it was trained on other features than this version's.
    """
    files = trained_files(session, name, number)
    return simulator_named(name) if files is None else restored(*files)


def trained_files(
    session: Session, name: str, number: int | None = None
) -> tuple[str, str, bytes] | None:
    """The name, the card and the tensors of the simulator that `simulator_of` answers with; None
    where it comes with every installation. Raises NotFound."""
    if name == LEARNED:
        number = version_in_use(session) if number is None else number
        if number == BUNDLED_VERSION:
            return None
        name = session.get_one(SimulatorVersionRow, number).simulator
    elif name in SIMULATORS:
        return None
    return name, *checkpoint_files(session, name)


def lock_simulator(session: Session, name: str) -> str:
    """The name; a trained simulator is not removed before the transaction ends.

    Raises:
        NotFound, InvalidInput: as `simulator_of`.
    """
    if name not in SIMULATORS:
        _restored(_row_with_files(session, name, lock=True))
    return name


def checkpoint_files(session: Session, name: str) -> tuple[str, bytes]:
    """The card (JSON) and the tensors (safetensors) of a trained simulator; raises NotFound."""
    row = _row_with_files(session, name)
    return row.card, row.weights


def stored_card(session: Session, name: str) -> tuple[SimulatorRow, "CheckpointCard"]:
    """What is known of a trained simulator, without its tensors; raises NotFound."""
    from autosync.simulator.learned.checkpoint import parse_card

    row = _row(session, name, undefer(SimulatorRow.card))
    return row, parse_card(row.card, f"the card of {name}")


def remove_simulator(database: Database, name: str) -> None:
    """Raises NotFound; NotSupported while a tuning that is not at its end uses it, and where it is
    a version of the trained simulator."""
    if name.startswith(NAME_OF_VERSION.format("")):
        raise NotSupported(
            f"{name!r} is a version of the trained simulator: versions are kept.",
            thing="simulator",
            value=name,
            remedy="Use another version instead: `autosync simulator promote`.",
        )
    with database.writing() as session:
        row = _row_with_files(session, name, lock=True)
        query = select(TuningRow.id).where(
            TuningRow.simulator == name, TuningRow.state.in_((*WAITING, *ACTIVE))
        )
        if (user := session.scalars(query).first()) is not None:
            raise NotSupported(
                f"simulator {name!r} is used by tuning {user}.",
                thing="simulator",
                value=name,
                remedy="Wait for its end, or cancel it.",
            )
        session.delete(row)


def _restored(row: SimulatorRow) -> "LearnedSimulator":
    return restored(row.name, row.card, row.weights)


def restored(name: str, card: str, weights: bytes) -> "LearnedSimulator":
    """Raises InvalidInput: it was trained on other features than this version's."""
    from autosync.simulator.learned.checkpoint import parse_card, restore

    return restore(parse_card(card, f"the card of {name}"), weights, name)


def _row_with_files(session: Session, name: str, lock: bool = False) -> SimulatorRow:
    """The row with its card and tensors; raises as `_row`."""
    return _row(session, name, undefer(SimulatorRow.card), undefer(SimulatorRow.weights), lock=lock)


def _row(session: Session, name: str, *parts: ExecutableOption, lock: bool = False) -> SimulatorRow:
    """The row with these of its large columns.

    Raises:
        NotFound: lists the simulators there are.
    """
    query = select(SimulatorRow).where(SimulatorRow.name == name).options(*parts)
    if lock:
        query = query.with_for_update()
    # what cannot be a name is not looked up: PostgreSQL refuses to compare with a NUL
    row = session.scalars(query).first() if NAME.fullmatch(name) else None
    if row is not None:
        return row
    refuse_retired(name)
    there = [each.name for each in list_simulators(session)]
    if name in SIMULATORS:
        message = f"{name!r} is no stored simulator: it comes with AutoSync."
        remedy = f"Stored are: {', '.join(there) or 'none'}."
    else:
        message = f"there is no trained simulator {name[:40]!r}."
        remedy = f"There are: {', '.join((*SIMULATORS, *there))}."
    raise not_found("simulator", name[:40], remedy, message)
