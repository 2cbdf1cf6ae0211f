"""`autosync keys`: who may use a service."""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.added_options import uses_service
from autosync.api.cli.console import print_json, print_table, say
from autosync.api.cli.options import Json
from autosync.api.spec import KeyScope

if TYPE_CHECKING:
    from autosync.api.cli.connection import Connection
    from autosync.api.views.schemas import ApiKey

app = typer.Typer(
    name="keys",
    no_args_is_help=True,
    help="Make, list and revoke keys to the service, in its database or as its administrator.\n\n"
    "With the first one, which is made in the database, the service asks everyone for a key.",
)


@app.command("list")
@uses_service
def list_keys(*, at: "Connection", json: Json = False) -> None:
    """List keys, the newest first, with those that were revoked or have expired.

    Example: `autosync keys list`
    """
    found = at.client.keys.list(limit=None).items
    if json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    print_table(("id", "name", "scope", "made", "last used", "state"), map(_row, found))


@app.command()
@uses_service
def add(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Of the client that it is for. Keys of one name share its queue and limits.",
            show_default=False,
        ),
    ],
    scope: Annotated[
        KeyScope,
        typer.Option(
            help="read: every answer. tune: also tunings, models, clusters, predictions. "
            "worker: only what `autosync worker --url` needs. admin: all, also keys and simulators."
        ),
    ] = "tune",
    days: Annotated[
        int | None,
        typer.Option(help="After which it expires.", min=1, max=3650, show_default="never"),
    ] = None,
    *,
    at: "Connection",
) -> None:
    """Make a key, and print it: this one time, since only its hash is kept.

    Example: `autosync keys add alice --scope tune --days 90`
    """
    made = at.client.keys.add(name, scope, days)
    say(f"[dim]key {made.id} of {escape(name)}, scope {scope}; it is shown this one time:[/]")
    typer.echo(made.key)


@app.command()
@uses_service
def revoke(
    key: Annotated[
        str, typer.Argument(metavar="ID", help="As `keys list` has it.", show_default=False)
    ],
    *,
    at: "Connection",
) -> None:
    """Revoke a key, at once, with the browsers that logged in with it.

    Example: `autosync keys revoke 3f2a90c1d4e5`
    """
    at.client.keys.revoke(key)
    say(f"Key {escape(key)} lets nobody in any more.")


def _row(key: "ApiKey") -> tuple[str, ...]:
    expired = key.expires_at is not None and key.expires_at.timestamp() < time.time()
    until = f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "for good"
    state = "revoked" if key.revoked_at else "expired" if expired else until
    used = f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never"
    return key.id, key.name, key.scope, f"{key.created_at:%Y-%m-%d %H:%M}", used, state
