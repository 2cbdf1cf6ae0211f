"""Alembic's entry: runs on the connection of `api/db/schema_migration.py`, or on a URL."""

import os

from alembic import context
from sqlalchemy import Connection

from autosync.api.db.database import WRITES, connect
from autosync.api.db.tables import Base
from autosync.environment import DATABASE_URL_VARIABLE


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def run_from_shell() -> None:
    """The `alembic` command, for writing a new revision."""
    database = connect(os.environ.get(DATABASE_URL_VARIABLE, "sqlite:///autosync.db"))
    with database.engine.connect().execution_options(**{WRITES: True}) as connection:
        run(connection)


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    run_from_shell()
