"""The database: connections, tables, documents, migrations.

May import no other room of the service.
"""

from autosync.api.db.database import Database, connect
from autosync.api.db.schema_migration import migrate

__all__ = ["Database", "connect", "migrate"]
