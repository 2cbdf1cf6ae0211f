"""Databases for the benchmarks that write to one."""

from tests.api.conftest import (
    postgresql,
    postgresql_template,
    sqlite,
    sqlite_template,
    sqlite_url,
    url,
)

__all__ = ["postgresql", "postgresql_template", "sqlite", "sqlite_template", "sqlite_url", "url"]
