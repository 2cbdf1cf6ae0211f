from tests.api.fixtures import (
    database,
    postgresql,
    postgresql_template,
    sqlite,
    sqlite_template,
    sqlite_url,
    url,
)

__all__ = [
    "database",
    "postgresql",
    "postgresql_template",
    "sqlite",
    "sqlite_template",
    "sqlite_url",
    "url",
]
