"""The database: connections, tables, documents, migrations.

May import no other package of the service. SQLAlchemy and Alembic are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autosync.api.db.database import Database, connect
    from autosync.api.db.schema_migration import migrate

__all__ = ["Database", "connect", "migrate"]

_HOMES = {
    "Database": "autosync.api.db.database",
    "connect": "autosync.api.db.database",
    "migrate": "autosync.api.db.schema_migration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
