"""`autosync simulator`: trained simulators in a database."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from autosync.api.cli.console import out, print_json, print_table, say
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, Json
from autosync.api.cli.output_files import check_writable, write_bytes, write_text

app = typer.Typer(
    name="simulator",
    no_args_is_help=True,
    help="Store trained simulators in a database, for `--simulator NAME`.\n\n"
    "A checkpoint is two files: NAME.safetensors, and its card NAME.json.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What it is called here.", show_default=False)
]


@app.command("list")
def list_all(db: DatabaseUrl = DEFAULT_DATABASE, json: Json = False) -> None:
    """List trained simulators.

    Example: `autosync simulator list`
    """
    from autosync.api.cli.open_database import opened
    from autosync.api.engine.simulator_store import LISTED
    from autosync.api.views.stored_documents import simulators

    with opened(db) as database, database.reading() as session:
        found = simulators(session, LISTED).items
    if json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    columns = ("name", "model", "domains", "trials", "accuracy", "on", "features")
    rows = [
        (
            each.name,
            each.kind,
            str(each.domains),
            str(each.trials),
            "-" if each.accuracy is None else f"{each.accuracy:.1%}",
            each.unseen,
            str(each.feature_version),
        )
        for each in found
    ]
    print_table(columns, rows, right=("domains", "trials", "accuracy", "features"))


@app.command()
def train(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Measured strategies: see `autosync collect`.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Ends in .safetensors.")
    ],
    model: Annotated[
        Literal["gaussian", "linear", "lstm", "gat", "ensemble"],
        typer.Option(help="What corrects the timeline."),
    ] = "gaussian",
    seed: Annotated[int, typer.Option(min=0, help="Of a network's weights.")] = 0,
) -> None:
    """Train a simulator on all domains of a dataset, and write it as a checkpoint.

    It is judged on every domain in turn, by a model that learned from the others alone.

    Example: `autosync simulator train datasets/runtimes -o trained.safetensors`
    """
    from autosync.simulator.evaluation.compared_models import maker
    from autosync.simulator.evaluation.measured_dataset import load_dataset
    from autosync.simulator.evaluation.pretraining import train_checkpoint
    from autosync.simulator.learned.models.recipe import Recipe

    check_writable(output)
    card = train_checkpoint(load_dataset(folder), maker(Recipe(model)), output, seed, say)
    judged = "" if card.accuracy is None else f", {card.accuracy:.1%} of unseen domains' pairs"
    out.print(
        f"{card.kind}: {card.trials} trials of {len(card.sources)} domains{judged}\n"
        f"[dim]written to {output.with_suffix('.safetensors')}, its card beside it[/]"
    )


@app.command()
def add(
    name: Name,
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The .safetensors, its card beside it.", show_default=False
        ),
    ],
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Store a checkpoint under a name.

    Example: `autosync simulator add five-clusters trained.safetensors`
    """
    from autosync.api.cli.argument_loading import read_bytes
    from autosync.api.cli.open_database import opened
    from autosync.api.engine.simulator_store import store_simulator

    card = read_bytes(checkpoint.with_suffix(".json"), "card")
    weights = read_bytes(checkpoint.with_suffix(".safetensors"), "checkpoint")
    with opened(db, create=True) as database:
        new = store_simulator(database, name, card, weights)
    say(
        f"Use it: autosync tune MODEL CLUSTER --simulator {name}" if new else "It was here already."
    )


@app.command()
def show(name: Name, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Print a simulator's card: what it learned from and how well it ranks, as JSON.

    Example: `autosync simulator show five-clusters`
    """
    from json import loads

    from autosync.api.cli.open_database import opened
    from autosync.api.engine.simulator_store import checkpoint_files

    with opened(db) as database, database.reading() as session:
        print_json(loads(checkpoint_files(session, name)[0]))


@app.command()
def save(
    name: Name,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Ends in .safetensors."),
    ],
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write a simulator as a checkpoint: FILE and its card beside it.

    Example: `autosync simulator save five-clusters -o copy.safetensors`
    """
    from autosync.api.cli.open_database import opened
    from autosync.api.engine.simulator_store import checkpoint_files

    with opened(db) as database, database.reading() as session:
        card, weights = checkpoint_files(session, name)
    write_text(output.with_suffix(".json"), card + "\n")
    write_bytes(output.with_suffix(".safetensors"), weights)
    out.print(f"[dim]written to {output.with_suffix('.safetensors')}[/]")


@app.command()
def remove(name: Name, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Remove a simulator, unless a tuning that is not at its end uses it.

    Example: `autosync simulator remove five-clusters`
    """
    from autosync.api.cli.open_database import opened
    from autosync.api.engine.simulator_store import remove_simulator

    with opened(db) as database:
        remove_simulator(database, name)
    out.print(f"{name} is gone.")
