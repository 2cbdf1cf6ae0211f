from tests.api.fixtures import (
    database,
    document_built_once,
    module_url,
    postgresql,
    postgresql_template,
    real_tuning,
    sqlite,
    sqlite_template,
    sqlite_url,
    url,
)

__all__ = [
    "database",
    "document_built_once",
    "module_url",
    "postgresql",
    "postgresql_template",
    "real_tuning",
    "sqlite",
    "sqlite_template",
    "sqlite_url",
    "url",
]
