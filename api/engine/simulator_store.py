"""Trained simulators: stored under names in the database, and found by them.

What is stored was checked to be what its card says. A name means the same tensors for ever: to
give it to others, it is removed first, which a tuning that needs it prevents.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session, undefer
from sqlalchemy.sql.base import ExecutableOption

from autosync.api.db.database import Database
from autosync.api.db.document_store import insert_new
from autosync.api.db.lookup import not_found
from autosync.api.db.tables import ACTIVE, WAITING, SimulatorRow, TuningRow
from autosync.api.engine.database_store import clean
from autosync.api.engine.registry import NEAREST, SIMULATORS, TRAINED, simulator_named
from autosync.api.engine.simulator_versions import (
    NAME_OF_VERSION,
    trained_version,
    version_in_use,
)
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.simulator.simulator_contract import Simulator
from autosync.units import MIB

if TYPE_CHECKING:
    from autosync.simulator.learned.checkpoint import CheckpointCard

# Checkpoints load torch, so they are imported where one is read: a service without any needs none.

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
    from autosync.simulator.learned.checkpoint import CheckpointCard, restore

    check_name(name)
    if len(card) > LARGEST_CARD_BYTES:
        raise InvalidInput(
            f"the card has {len(card)} bytes; the limit is {LARGEST_CARD_BYTES}.",
            thing="card",
            value=len(card),
            remedy="Give the .json that lies beside the tensors.",
        )
    parsed = from_json(CheckpointCard, card, source="card")
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
    reserved = (*SIMULATORS, NEAREST, "versions", "trainings")
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


def simulator_of(
    session: Session, name: str, domain: Domain, number: int | None = None
) -> Simulator:
    """The simulator of a name, for the domain: of the names of the trained one that version, by
    default the one in use; one that was stored, as it was saved.

    Raises:
        NotFound: neither; lists what there is.
        InvalidInput: it was trained on other features than this version's.
    """
    if name in TRAINED:
        number = version_in_use(session) if number is None else number
        return trained_version(session, number, name, domain)
    if name in SIMULATORS:
        return simulator_named(name, domain)
    return _restored(_row_with_files(session, name))


def lock_simulator(session: Session, name: str, domain: Domain) -> str:
    """The name, NEAREST resolved; a trained simulator is not removed before the transaction ends.

    Raises:
        NotFound, InvalidInput: as `simulator_of` and `resolved_name`.
    """
    name = resolved_name(session, name, domain)
    if name not in SIMULATORS:
        _restored(_row_with_files(session, name, lock=True))
    return name


def resolved_name(session: Session, name: str, domain: Domain) -> str:
    """The name itself, or that of the trained simulator for which NEAREST stands.

    Raises:
        NotFound: there is none that reads this version's features.
    """
    if name != NEAREST:
        return name
    from autosync.simulator.learned.checkpoint import CheckpointCard
    from autosync.simulator.learned.features.feature_names import FEATURE_VERSION
    from autosync.simulator.learned.training import nearest_checkpoint

    readable = (SimulatorRow.feature_version == FEATURE_VERSION, SimulatorRow.domains > 0)
    query = select(SimulatorRow.name, SimulatorRow.card).where(*readable)
    rows = session.execute(query.order_by(SimulatorRow.name)).all()
    if not rows:
        message = f"no trained simulator here reads features of version {FEATURE_VERSION}."
        remedy = "Store one first (`autosync simulator add`), or use learned."
        raise not_found("simulator", name, remedy, message)
    cards = [from_json(CheckpointCard, row.card, source="card") for row in rows]
    return str(rows[nearest_checkpoint(domain, cards)].name)


def checkpoint_files(session: Session, name: str) -> tuple[str, bytes]:
    """The card (JSON) and the tensors (safetensors) of a trained simulator; raises NotFound."""
    row = _row_with_files(session, name)
    return row.card, row.weights


def stored_card(session: Session, name: str) -> tuple[SimulatorRow, "CheckpointCard"]:
    """What is known of a trained simulator, without its tensors; raises NotFound."""
    from autosync.simulator.learned.checkpoint import CheckpointCard

    row = _row(session, name, undefer(SimulatorRow.card))
    return row, from_json(CheckpointCard, row.card, source="card")


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


def _restored(row: SimulatorRow) -> Simulator:
    from autosync.simulator.learned.checkpoint import CheckpointCard, restore

    return restore(from_json(CheckpointCard, row.card, source="card"), row.weights, row.name)


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
    known = (*SIMULATORS, *(each.name for each in list_simulators(session)))
    message = f"there is no trained simulator {name[:40]!r}."
    raise not_found("simulator", name[:40], f"There are: {', '.join(known)}.", message)
