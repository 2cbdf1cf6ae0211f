"""The database: its tables, connections, migrations and documents."""

from autosync.api.db.database import Database, connect
from autosync.api.db.migrate import migrate

__all__ = ["Database", "connect", "migrate"]
