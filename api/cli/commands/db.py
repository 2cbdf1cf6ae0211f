"""`autosync db`: the database's schema."""

import typer
from rich.markup import escape

from autosync.api.cli.console import say
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl

db = typer.Typer(no_args_is_help=True, help="The database's schema.")


@db.command("upgrade")
def upgrade(db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Make a database, or bring one of an earlier version to this version's schema.

    `autosync serve` does so itself when it starts; every other command refuses an older schema, and
    only `autosync tune` and `autosync quickstart` make a database where there is none. One
    transaction: where it fails, the database stays as it was. Make a copy before: an earlier
    version cannot read it afterwards.

    Example: `autosync db upgrade --db sqlite:///autosync.db`
    """
    from autosync.api.db.database import masked
    from autosync.api.db.schema_migration import migrate

    migrate(db)
    say(f"{escape(masked(db))} has the schema of this version")
