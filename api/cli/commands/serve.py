"""`autosync serve`: the REST service, its dashboard, and workers."""

import os
from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, say
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
from autosync.environment import LIMITS_VARIABLE, TOKEN_VARIABLE
from autosync.errors import InvalidInput

LOOPBACK = "127.0.0.1"


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    db: DatabaseUrl = DEFAULT_DATABASE,
    workers: Annotated[
        int, typer.Option(min=0, help="Workers to start here; 0 where they run elsewhere.")
    ] = 1,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            help="A text that lets in like a key of scope admin, for whoever cannot reach the "
            "database to add a first key. Several have names: NAME:TOKEN,NAME:TOKEN. Better set in "
            "the environment, since others see command lines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name under which clients address the service, besides the address it listens "
            "on and, where that is any, this machine's name. May be given again.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="What clients may ask for, such as budget=100 (`GET /v1/limits` shows all); "
            f"{LIMITS_VARIABLE} takes several, separated by commas. May be given again.",
            show_default=False,
        ),
    ] = None,
    https: Annotated[
        bool,
        typer.Option(
            "--https",
            help="Browsers reach it through TLS alone, by a proxy that does not say so with "
            "X-Forwarded-Proto: cookies are then sent over TLS only.",
        ),
    ] = False,
    log_requests: Annotated[
        bool,
        typer.Option("--log-requests", help="Write a line of JSON for each request to stderr."),
    ] = False,
    root_path: Annotated[
        str,
        typer.Option(
            metavar="/PATH",
            help="Below which a proxy shows the service, as at https://example.com/PATH; links, "
            "redirects and cookies begin with it.",
            show_default=False,
        ),
    ] = "",
    keep_days: KeepDays = None,
    prefix: Prefix = None,
    python: WorkerPython = None,
    ray_address: RayAddress = None,
    share_gpus: ShareGpus = False,
) -> None:
    """Run the service with its dashboard and a worker, over one database.

    The database is created and upgraded through its migrations, once all options are right and it
    listens. Unfinished tunings go on where they stopped. Ctrl-C and SIGTERM end the service and its
    workers, which give back what runs.

    Beyond loopback, and where the database has a key (`autosync keys add`), everyone needs one.

    Examples:

        autosync serve
        autosync serve --db postgresql://tuner@localhost/autosync --workers 0
        autosync db upgrade
        autosync keys add me --scope admin
        autosync serve --host 0.0.0.0 --allow-host tuner.example.com
    """
    from autosync.api.cli.connection import has_keys
    from autosync.api.cli.stop_signals import left_at_once, unwind_on_sigterm
    from autosync.api.cli.worker_processes import started_workers
    from autosync.api.db.database import masked
    from autosync.api.db.schema_migration import migrate
    from autosync.api.engine.service_limits import limits_from
    from autosync.api.http.access.access_rules import access_on
    from autosync.api.http.app import serve as serve_until_interrupted
    from autosync.api.http.listening import close, listening_sockets, shown_address
    from autosync.api.http.root_path import checked_root_path

    if token is None:  # the library takes an empty variable for one that is not set
        token = os.environ.get(TOKEN_VARIABLE)
    limits = limits_from([*os.environ.get(LIMITS_VARIABLE, "").split(","), *(limit or ())])
    keys = has_keys(db)
    access = access_on(host, token, allow_host or (), keys=keys, https=https)
    root_path = checked_root_path(root_path)
    if keep_days is not None and not workers:
        raise InvalidInput(
            "workers remove what is no longer kept, and none is started here.",
            thing="--keep-days",
            value=keep_days,
            remedy="Give --keep-days to `autosync worker`, where the workers run.",
        )
    set_up_launchers(prefix, python, ray_address, share_gpus)
    sockets = listening_sockets(host, port)
    try:
        migrate(db)
    except BaseException:
        close(sockets)
        raise
    address = shown_address(host, port, root_path)
    shown = escape(masked(db))
    out.print(f"AutoSync on [bold]{address}[/]  (API: {address}/docs, database: {shown})")
    say(f"[dim]it is addressed as {', '.join(access.hosts)}[/]")
    if keys or access.closed:
        say("[dim]everyone needs a key: autosync keys add NAME[/]")
    if names := [each.name for each in access.tokens if each.name]:
        say(f"[dim]clients with a token: {escape(', '.join(names))}[/]")
    unwind_on_sigterm()
    with left_at_once(), started_workers(db, workers, keep_days) as processes:
        say(f"[dim]{workers} worker{'' if workers == 1 else 's'}; Ctrl-C ends all[/]")
        serve_until_interrupted(
            db,
            sockets,
            access,
            limits,
            root_path=root_path,
            log_requests=log_requests,
            on_shutdown=processes.ask_to_stop,
        )
