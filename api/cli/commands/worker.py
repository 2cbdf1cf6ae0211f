"""`autosync worker`: works off the queue of a database, or of a service."""

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
    ServiceUrl,
    ShareGpus,
    WorkerPython,
    set_up_launchers,
)
from autosync.errors import InvalidInput
from autosync.trials.request_names import LauncherName


def worker(
    db: DatabaseUrl = DEFAULT_DATABASE,
    url: ServiceUrl = None,
    once: Annotated[bool, typer.Option(help="End when nothing waits.")] = False,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="Stop when this process, the parent, ends.")
    ] = None,
    keep_days: KeepDays = None,
    launcher: Annotated[
        LauncherName | None,
        typer.Option(
            help="Take tunings of this launcher alone.",
            show_default="all that are set up here",
        ),
    ] = None,
    prefix: Prefix = None,
    python: WorkerPython = None,
    ray_address: RayAddress = None,
    share_gpus: ShareGpus = False,
) -> None:
    """Work off queued tunings, on any machine that reaches the database, or with `--url` the
    service: the worker then needs a key of scope worker in AUTOSYNC_TOKEN, and nothing else needs
    to reach it.

    Ctrl-C or SIGTERM breaks off what runs and gives the tuning back to the queue, within two
    seconds; a second one ends at once (the tuning is then taken over after 15 s). Nothing
    finished is run again.

    Example: `autosync worker --db postgresql://tuner@db.internal/autosync`

    Example: `autosync worker --url https://tuner.example.com`
    """
    from autosync.api.cli.stop_signals import (
        leave_when_overdue,
        stop_on_signals,
        stop_with_parent,
    )
    from autosync.api.engine.queue_worker import work, work_off
    from autosync.api.engine.registry import check_launcher

    set_up_launchers(prefix, python, ray_address, share_gpus)
    if url is None:
        from autosync.api.cli.connection import refuse_missing
        from autosync.api.db.schema_migration import require_schema

        refuse_missing(db)  # else SQLite would make an empty one
        require_schema(db)
    elif keep_days is not None:
        raise InvalidInput(
            "a worker of a service removes nothing.",
            thing="--keep-days",
            value=keep_days,
            remedy="Give it to `autosync serve`, or to a worker of the database.",
        )
    if launcher is not None:
        check_launcher(launcher)
    launchers = None if launcher is None else (launcher,)
    stop = stop_on_signals()
    leave_when_overdue(stop, exit_code=0)  # what it had is given back
    if parent is not None:
        stop_with_parent(parent, stop)
    if url is None:
        from autosync.api.db.database import masked

        say(f"Working off the queue of {escape(masked(db))} (Ctrl-C gives back what runs)")
        work(db, stop, once, keep_days=keep_days, launchers=launchers)
        return
    from autosync.api.client.service_queue import ServiceQueue, service_client

    with service_client(url) as client:
        say(f"Working off the queue of {escape(client.address)} (Ctrl-C gives back what runs)")
        work_off(ServiceQueue(client), stop, once, launchers=launchers)
