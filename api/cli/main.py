"""`autosync`: the command line. Each command is a file of its own beside this one.

Nothing heavy is imported here: commands import what they need when they run, so that `--help`
and completion answer at once.
"""

import sys
from typing import Annotated

import typer

from autosync.api.cli.commands.cluster import app as cluster
from autosync.api.cli.commands.clusters import clusters
from autosync.api.cli.commands.collect import collect
from autosync.api.cli.commands.dataset import app as dataset
from autosync.api.cli.commands.db import db
from autosync.api.cli.commands.diagnose import diagnose
from autosync.api.cli.commands.doctor import doctor
from autosync.api.cli.commands.explain import explain
from autosync.api.cli.commands.export import export
from autosync.api.cli.commands.import_cluster import import_cluster
from autosync.api.cli.commands.import_model import import_model
from autosync.api.cli.commands.keys import app as keys
from autosync.api.cli.commands.models import models
from autosync.api.cli.commands.predictions.collectives import collectives
from autosync.api.cli.commands.predictions.predict import predict
from autosync.api.cli.commands.predictions.rank import rank
from autosync.api.cli.commands.predictions.scale import scale
from autosync.api.cli.commands.probe import probe
from autosync.api.cli.commands.profile import profile
from autosync.api.cli.commands.quickstart import quickstart
from autosync.api.cli.commands.schema import schema
from autosync.api.cli.commands.serve import serve
from autosync.api.cli.commands.simulator import app as simulator
from autosync.api.cli.commands.stored_tunings import (
    cancel_tuning,
    list_tunings,
    pause_tuning,
    print_events,
    resume_tuning,
    show_tuning,
)
from autosync.api.cli.commands.submit import app as submit
from autosync.api.cli.commands.tune import tune
from autosync.api.cli.commands.verify import verify
from autosync.api.cli.commands.worker import worker
from autosync.api.cli.error_reporting import guarded
from autosync.api.cli.stop_signals import left_at_once

ABOUT = """Find, measure and apply the fastest exact way to synchronize gradients.

Two lines of a training script apply what is found:

    import autosync
    model, optimizer = autosync.distribute(model, optimizer, "best.json")

Begin with one of these:

    torchrun --nproc-per-node 2 -m autosync diagnose train.py:example  # is it worth it?
    autosync rank resnet50 example-4x1               # seconds, no trial
    autosync tune resnet50 example-4x1 -o best.json  # measured and confirmed
    autosync serve                                   # the same as a service with a dashboard

Commands with --url can use a service in place of a database; all others work on this machine alone.
"""

app = typer.Typer(
    name="autosync",
    help=ABOUT,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from autosync.environment import own_version

        typer.echo(f"autosync {own_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Takes the options before a command."""


FIND = "Find a strategy"
DESCRIBE = "Describe the model and the cluster"
SERVICE = "Run as a service"
LOOK = "Look into the results"

app.command("diagnose", rich_help_panel=FIND)(diagnose)
app.command("tune", rich_help_panel=FIND)(tune)
app.command("rank", rich_help_panel=FIND)(rank)
app.command("predict", rich_help_panel=FIND)(predict)
app.command("scale", rich_help_panel=FIND)(scale)
app.command("collectives", rich_help_panel=FIND)(collectives)
app.command("import", rich_help_panel=DESCRIBE)(import_model)
app.command("models", rich_help_panel=DESCRIBE)(models)
app.command("profile", rich_help_panel=DESCRIBE)(profile)
app.command("clusters", rich_help_panel=DESCRIBE)(clusters)
app.add_typer(cluster, name="cluster", rich_help_panel=DESCRIBE)
app.command("import-cluster", rich_help_panel=DESCRIBE)(import_cluster)
app.command("probe", rich_help_panel=DESCRIBE)(probe)
app.command("collect", rich_help_panel=DESCRIBE)(collect)
app.command("serve", rich_help_panel=SERVICE)(serve)
app.command("worker", rich_help_panel=SERVICE)(worker)
app.add_typer(submit, name="submit", rich_help_panel=SERVICE)
app.add_typer(keys, name="keys", rich_help_panel=SERVICE)
app.add_typer(db, name="db", rich_help_panel=SERVICE)
app.command("quickstart", rich_help_panel=SERVICE)(quickstart)
app.command("doctor", rich_help_panel=SERVICE)(doctor)
app.command("tunings", rich_help_panel=LOOK)(list_tunings)
app.command("show", rich_help_panel=LOOK)(show_tuning)
app.command("logs", rich_help_panel=LOOK)(print_events)
app.command("cancel", rich_help_panel=LOOK)(cancel_tuning)
app.command("pause", rich_help_panel=LOOK)(pause_tuning)
app.command("resume", rich_help_panel=LOOK)(resume_tuning)
app.command("export", rich_help_panel=LOOK)(export)
app.command("explain", rich_help_panel=LOOK)(explain)
app.command("verify", rich_help_panel=LOOK)(verify)
app.command("schema", rich_help_panel=LOOK)(schema)
app.add_typer(dataset, name="dataset", rich_help_panel=LOOK)
app.add_typer(simulator, name="simulator", rich_help_panel=LOOK)


def run() -> None:
    """The console script."""
    with left_at_once():
        sys.exit(guarded(app))


if __name__ == "__main__":
    run()
