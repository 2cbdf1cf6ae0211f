"""`autosync worker`: works off the queue of a database."""

from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import say
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    DatabaseUrl,
    KeepDays,
    Prefix,
    RayAddress,
    ShareGpus,
    WorkerPython,
    set_up_launchers,
)


def worker(
    db: DatabaseUrl = DEFAULT_DATABASE,
    once: Annotated[bool, typer.Option(help="End when nothing waits.")] = False,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="Stop when this process, the parent, ends.")
    ] = None,
    keep_days: KeepDays = None,
    prefix: Prefix = None,
    python: WorkerPython = None,
    ray_address: RayAddress = None,
    share_gpus: ShareGpus = False,
) -> None:
    """Work off queued tunings, on any machine that reaches the database.

    Ctrl-C or SIGTERM breaks off what runs and gives the tuning back to the queue, within two
    seconds; a second one ends at once (the tuning is then taken over after 15 s). Nothing
    finished is run again.

    Example: `autosync worker --db postgresql://tuner@db.internal/autosync`
    """
    from autosync.api.cli.connection import refuse_missing
    from autosync.api.cli.stop_signals import (
        leave_when_overdue,
        stop_on_signals,
        stop_with_parent,
    )
    from autosync.api.db.database import masked
    from autosync.api.db.schema_migration import require_schema
    from autosync.api.engine.queue_worker import work

    set_up_launchers(prefix, python, ray_address, share_gpus)
    refuse_missing(db)  # else SQLite would make an empty one
    require_schema(db)
    stop = stop_on_signals()
    leave_when_overdue(stop, exit_code=0)  # what it had is given back
    if parent is not None:
        stop_with_parent(parent, stop)
    say(f"Working off the queue of {escape(masked(db))} (Ctrl-C gives back what runs)")
    work(db, stop, once, keep_days=keep_days)
