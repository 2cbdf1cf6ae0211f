"""`autosync simulator`: trained simulators of a database or a service."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from autosync.api.cli.added_options import uses_service
from autosync.api.cli.console import log_to_file, out, print_json, print_table, say
from autosync.api.cli.options import (
    DEFAULT_DATABASE,
    DatabaseUrl,
    Json,
    ServiceUrl,
    database_option,
)
from autosync.api.cli.output_files import check_writable, write_bytes, write_text
from autosync.errors import AutosyncError, InvalidInput

if TYPE_CHECKING:
    from autosync.api.cli.connection import Connection
    from autosync.api.views.schemas import SimulatorVersions

app = typer.Typer(
    name="simulator",
    no_args_is_help=True,
    help="Train simulators, and store them in a database for `--simulator NAME`.\n\n"
    "A checkpoint is two files: NAME.safetensors, and its card NAME.json.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What it is called here.", show_default=False)
]


@app.command("list")
@uses_service
def list_all(*, at: "Connection", json: Json = False) -> None:
    """List trained simulators.

    Example: `autosync simulator list`
    """
    found = at.client.simulators.list(limit=None).items
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
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="Measured strategies: see `autosync collect`.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Ends in .safetensors.")
    ] = None,
    encoder: Annotated[
        Literal["none", "gat"],
        typer.Option(help="Network that reads the strategy beside the sums over its messages."),
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Of the encoder.")] = 0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    url: ServiceUrl = None,
) -> None:
    """Train a simulator: on a dataset, into a file, or on what a database's tunings measured.

    With FOLDER and FILE it is judged on the domains of each model in turn, by one that learned from
    the others alone. Without, it becomes the database's next version, and is used from then on
    where it is not worse than the one before, on strategies that neither has learned from.

    Examples:

        autosync simulator train datasets/runtimes -o trained.safetensors
        autosync simulator train --db sqlite:///autosync.db
    """
    from autosync.api.engine.request_checks import refuse_given

    if folder is None and output is None:
        refuse_given(
            {"--encoder": None if encoder == "none" else encoder},
            "on the next version of a database, which has none",
            "Leave it out, or give FOLDER and --output.",
        )
        return _train_version(db, url, seed)
    if folder is None or output is None:
        raise InvalidInput(
            "a checkpoint needs FOLDER and FILE.",
            thing="FOLDER" if folder is None else "--output",
            value=None,
            remedy="Give both, or neither to train the next version of a database.",
        )
    refuse_given(
        {"--url": url, "--db": database_option(db).strip() or None},
        "on a checkpoint, which is trained here",
        "Leave it out; `autosync simulator add` stores the checkpoint for tunings.",
    )
    from autosync.simulator.learned.checkpoint import (
        CheckpointCard,
        library_versions,
        save_checkpoint,
    )
    from autosync.simulator.learned.training import source_of, split_dataset, train_simulator
    from autosync.simulator.runtime_dataset import dataset_hash, load_dataset

    check_writable(output)
    measured, network = load_dataset(folder), None
    if encoder == "gat":
        from autosync.simulator.learned.encoders import gat_network

        network = partial(gat_network, seed)
    sources = split_dataset(measured, with_nodes=network is not None)
    found = train_simulator(sources, say, network)
    learned = tuple(source_of(each.learned) for each in sources)
    card = CheckpointCard(
        learned,
        found.accuracy,
        found.unseen,
        encoder,
        seed,
        versions=library_versions(),
        dataset=dataset_hash(measured),
    )
    save_checkpoint(output, found.simulator, card)
    judged = "" if card.accuracy is None else f", {card.accuracy:.1%} of unseen models' pairs"
    written = escape(str(output.with_suffix(".safetensors")))
    out.print(
        f"{card.kind}: {card.trials} trials of {len(card.sources)} domains{judged}\n"
        f"[dim]written to {written}, its card beside it[/]"
    )


def _train_version(db: str, url: str | None, seed: int) -> None:
    """Here and now, or by a worker of the service; one that has begun already is left to it."""
    import threading

    from autosync.api.cli.connection import connected

    with connected(db, url) as at:
        training = at.client.simulators.train(seed=seed)
        if at.database is None:
            say(f"training {training.id[:8]} is {training.state}: a worker of the service runs it")
            return
        from autosync.api.engine.queue_worker import this_worker, train_next

        log = log_to_file("train")
        say("training on what was measured")
        while training.state == "queued" and train_next(
            at.database, this_worker(), threading.Event()
        ):  # an older one, whose worker is gone, goes first
            training = at.client.simulators.training(training.id)
        if training.state == "failed":
            raise AutosyncError(
                f"training {training.id[:8]} failed: {training.error}",
                thing="training",
                value=training.id,
                remedy=f"Details: {log}. What was measured is kept, and may be trained on again.",
            )
        if training.version is None:
            said = f": {escape(training.message)}" if training.message else ""
            say(f"training {training.id[:8]} is {training.state}{said}")
        _print_versions(at.client.simulators.versions(limit=None))


@app.command()
@uses_service
def versions(*, at: "Connection", json: Json = False) -> None:
    """List the versions of the trained simulator, and which is in use.

    Example: `autosync simulator versions`
    """
    found = at.client.simulators.versions(limit=None)
    if json:
        print_json(found.model_dump(mode="json", exclude={"next"}))
    else:
        _print_versions(found)


def _print_versions(found: "SimulatorVersions") -> None:
    columns = ("version", "", "held out", "before", "picks", "before", "trials")
    rows = [
        (
            str(one.number),
            "in use" if one.number == found.in_use else "",
            *(
                "-" if share is None else f"{share:.1%}"
                for share in (
                    one.accuracy,
                    one.parent_accuracy,
                    one.pick_accuracy,
                    one.parent_pick_accuracy,
                )
            ),
            str(one.trials),
        )
        for one in found.items
    ]
    rows.append(("0", "in use" if found.in_use == 0 else "", *("-",) * 4, "bundled"))
    print_table(columns, rows, right=columns[2:])


@app.command()
@uses_service
def promote(
    number: Annotated[int, typer.Argument(min=0, help="0 is the bundled one.")],
    *,
    at: "Connection",
) -> None:
    """Use a version of the trained simulator from now on.

    Example: `autosync simulator promote 3`
    """
    at.client.simulators.promote(number)
    out.print(f"Version {number} is in use.")


@app.command()
@uses_service
def add(
    name: Name,
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            dir_okay=False,
            help="The .safetensors, its card beside it.",
            show_default=False,
        ),
    ],
    *,
    at: "Connection",
) -> None:
    """Store a checkpoint under a name.

    Example: `autosync simulator add five-clusters trained.safetensors`
    """
    from autosync.api.cli.domain_arguments import read_bytes

    card = read_bytes(checkpoint.with_suffix(".json"), "card")
    weights = read_bytes(checkpoint.with_suffix(".safetensors"), "checkpoint")
    at.client.simulators.put(name, card, weights)
    say(f"Use it: autosync tune MODEL CLUSTER --simulator {name}")


@app.command()
@uses_service
def show(name: Name, *, at: "Connection") -> None:
    """Print a simulator's card: what it learned from and how well it ranks, as JSON.

    Example: `autosync simulator show five-clusters`
    """
    print_json(at.client.simulators.card(name))


@app.command()
@uses_service
def save(
    name: Name,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Ends in .safetensors."),
    ],
    *,
    at: "Connection",
) -> None:
    """Write a simulator as a checkpoint: FILE and its card beside it.

    Example: `autosync simulator save five-clusters -o copy.safetensors`
    """
    from json import dumps

    check_writable(output)
    card, weights = at.client.simulators.card(name), at.client.simulators.weights(name)
    file = output.with_suffix(".safetensors")
    write_text(output.with_suffix(".json"), dumps(card, ensure_ascii=False) + "\n")
    write_bytes(file, weights)
    out.print(f"[dim]written to {escape(str(file))}[/]")


@app.command()
@uses_service
def remove(name: Name, *, at: "Connection") -> None:
    """Remove a simulator, unless a tuning that is not at its end uses it.

    Example: `autosync simulator remove five-clusters`
    """
    at.client.simulators.delete(name)
    out.print(f"{name} is gone.")
