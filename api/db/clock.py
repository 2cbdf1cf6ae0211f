"""The database's own clock, so that leases do not depend on the clocks of the workers."""

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction


class now_seconds(GenericFunction[float]):  # noqa: N801  # a SQL function, named like one
    """Seconds since 1970-01-01 UTC, to about a millisecond."""

    type = Double()
    inherit_cache = True


@compiles(now_seconds, "sqlite")
def _sqlite(element: Any, compiler: Any, **options: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_seconds, "postgresql")
def _postgresql(element: Any, compiler: Any, **options: Any) -> str:
    # now() stands still within a transaction
    return "extract(epoch from clock_timestamp())::double precision"
