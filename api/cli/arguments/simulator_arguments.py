"""--simulator as it was typed: what predicts."""

from typing import TYPE_CHECKING

from autosync.api.cli.arguments.document_arguments import unknown_name
from autosync.errors import NotFound

if TYPE_CHECKING:
    from autosync.domain import Domain
    from autosync.simulator.simulator_contract import Simulator


def load_simulator(name: str, db: str, domain: "Domain") -> "Simulator":
    """A bundled simulator, or a trained one of the database; for `nearest`, by the domain.

    Raises:
        NotFound: no such simulator, or no such database.
        InvalidInput: it was trained on other features than this version's.
    """
    from autosync.api.cli.open_database import opened, refuse_missing, uses_bundled_simulator
    from autosync.api.engine.registry import NEAREST, SIMULATORS, TRAINED, simulator_named

    if name in SIMULATORS and (name not in TRAINED or uses_bundled_simulator(db)):
        return simulator_named(name, domain)
    try:
        refuse_missing(db)
        from autosync.api.engine.simulator_store import resolved_name, simulator_of

        with opened(db) as database, database.reading() as session:
            return simulator_of(session, resolved_name(session, name, domain), domain)
    except NotFound as missing:
        if missing.thing != "--db":
            raise
        if name in TRAINED:  # nothing was tuned here: the one that comes with AutoSync
            return simulator_named(name, domain)
        if name == NEAREST:
            raise _none_to_choose_from(name, db) from None
        remedy = f"Trained ones are in a database, and {missing.message}"
        raise unknown_name("simulator", name, list(SIMULATORS), remedy) from None


def _none_to_choose_from(name: str, db: str) -> NotFound:
    return NotFound(
        f"{name} chooses among the trained simulators of a database, and there is no {db!r}.",
        thing="--simulator",
        value=name,
        remedy="Name a database with --db, or use learned, which needs none.",
    )
