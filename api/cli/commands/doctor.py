"""`autosync doctor`: what works on this machine, and how to mend what does not."""

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_json, print_table
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, Json

COLOURS = {"works": "green", "absent": "yellow", "broken": "red"}
BROKEN = 1
"""Exit code where something that is there does not work."""


def doctor(db: DatabaseUrl = DEFAULT_DATABASE, json: Json = False) -> None:
    """Try what AutoSync uses on this machine, and say how to get or mend what does not work.

    torch, gloo, NCCL, namespaces with shaped links, the lock of measurements, the cache of compiled
    kernels, the database, Ray, a browser. Exit code 1 where something is broken; what is absent
    breaks nothing.

    Examples:

        autosync doctor
        autosync doctor --db postgresql://tuner@db.internal/autosync --json
    """
    from dataclasses import asdict

    from autosync.api.cli.machine_checks import check_machine

    found = check_machine(db)
    if json:
        print_json([asdict(each) for each in found])
    else:
        print_table(
            ("", "", "found"),
            [
                (each.name, f"[{COLOURS[each.verdict]}]{each.verdict}[/]", escape(each.found))
                for each in found
            ],
        )
        for each in found:
            if each.remedy:
                out.print(f"[bold]{each.name}[/]: {escape(each.remedy)}")
    if any(each.verdict == "broken" for each in found):
        raise typer.Exit(BROKEN)
