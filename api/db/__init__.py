from api.db.database import Database, connect
from api.db.migrate import migrate

__all__ = ["Database", "connect", "migrate"]
