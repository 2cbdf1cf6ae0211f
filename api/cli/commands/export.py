"""`autosync export`: the bundle of a finished tuning."""

from pathlib import Path
from typing import Annotated

import typer

from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl
from autosync.api.cli.output_files import write_text


def export(
    tuning: Annotated[
        str,
        typer.Argument(
            metavar="TUNING", help="Its id, or the beginning of it.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the bundle goes.")
    ] = Path("best.json"),
    trials: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where its trials go, for `--from` and `autosync.tune(since=...)`."
        ),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write the bundle that a finished tuning found.

    Example: `autosync export 3f2a90c1 -o best.json --trials measured.json`
    """
    from autosync.api.cli.earlier_tunings import measured_trials
    from autosync.api.cli.open_database import opened
    from autosync.api.cli.tuning_lookup import bundle_text, find_tuning
    from autosync.api.cli.tuning_report import print_two_lines
    from autosync.documents import to_json

    with opened(db) as database:
        found = find_tuning(database, tuning)
        write_text(output, bundle_text(database, found.id))
        if trials is not None:
            write_text(trials, to_json(measured_trials(database, found.id)))
    print_two_lines(output)
