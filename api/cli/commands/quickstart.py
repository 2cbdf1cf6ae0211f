"""`autosync quickstart`: everything once, on real input."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from autosync.api.cli.commands.export import BUNDLE_FILE
from autosync.api.cli.console import err, out, say
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, database_option
from autosync.api.cli.output_files import check_writable
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.domain import Domain

MODEL, CLUSTER = "resnet50", "example-4x1"
TRIALS: dict[str, Any] = {"repeats": 10, "warmup": 1, "iterations": 4}
"""Of a tuning; at time scale 2 an iteration is long beside what disturbs it."""
TOP = 12
"""Strategies listed at the end."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Numbers the steps on stderr."""

    started: float

    def say(self, number: int, text: str) -> None:
        seconds = time.monotonic() - self.started
        err.print(f"[bold cyan]{number}/4[/] {text} [dim]({seconds:.0f} s)[/]")


def quickstart(
    budget: Annotated[int, typer.Option(min=1, help="Strategies tried.")] = 12,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the bundle goes.")
    ] = BUNDLE_FILE,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of the service.")] = 8080,
    db: DatabaseUrl = DEFAULT_DATABASE,
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--leave", help="Then serve the dashboard until Ctrl-C."),
    ] = None,
) -> None:
    """Tune ResNet-50 for a small cluster from scratch: about two minutes, no GPU needed.

    Imports a real ResNet-50 module, tunes it for a bundled cluster of 4 nodes (emulated on this
    machine, at scales that it prints), shows the search live, and ends with the ranked table, the
    bundle, the two lines that apply it, and the dashboard.

    Example: `autosync quickstart --budget 16 -o best.json`
    """
    from autosync.api.cli.commands.tune import given_again, report, run_tuning
    from autosync.api.cli.connection import connected
    from autosync.api.cli.tuning_report import scale_words
    from autosync.trials.scales import automatic_scales

    check_writable(output)
    steps = Steps(time.monotonic())
    steps.say(1, f"importing a real ResNet-50 module for {CLUSTER}")
    domain = _domain()
    byte_scale, time_scale = automatic_scales(domain)
    say(
        f"{scale_words(byte_scale, time_scale)}, over links that are scaled alike, so that this "
        "machine stands in for the cluster"
    )
    repeats = TRIALS["repeats"]
    steps.say(2, f"tuning: {budget} strategies, then {repeats} interleaved repeats")
    with connected(db, None, create=True) as at:
        tuning = at.client.tunings.start(
            domain.graph,
            CLUSTER,
            budget=budget,
            byte_scale=byte_scale,
            time_scale=time_scale,
            **TRIALS,
        )
        where = database_option(db) + given_again(output, {})
        run_tuning(at, tuning, resumed=False, where=where)
        steps.say(3, "done: the ranked strategies")
        report(at.client, tuning.id, output, TOP, json=False)
    steps.say(4, "the dashboard has the whole history")
    if stay if stay is not None else sys.stdin.isatty() and err.is_terminal:
        keep_dashboard(port, db)
    else:
        out.print(f"Dashboard: `autosync serve{escape(database_option(db))}`")


def keep_dashboard(port: int, db: str) -> None:
    """Until Ctrl-C.

    Raises:
        InvalidInput: as `serve`. Another listens at the port, as the dashboard of an earlier
            quickstart: the tuning need not run again for another port.
    """
    from autosync.api.cli.commands.serve import serve

    try:
        serve(port=port, db=db)
    except InvalidInput as error:
        if error.thing == "--port":
            error.remedy = (
                "The tuning is stored. Its dashboard, at another port: "
                f"`autosync serve --port PORT{database_option(db)}`."
            )
        raise


def _domain() -> "Domain":
    """The module recorded here and now, on the bundled cluster."""
    from autosync.api.cli.domain_arguments import ProfileChoice, describe_domain, load_profile
    from autosync.cluster.cluster_file import load_cluster
    from autosync.domain import Domain
    from autosync.importing import import_module
    from autosync.models import BUNDLED

    spec = BUNDLED[MODEL]
    module, inputs, loss = spec.build()
    graph = import_module(module, inputs, loss, name=MODEL, batch_size=spec.batch_size)
    cluster = load_cluster(CLUSTER)
    domain = Domain(graph, cluster, load_profile(graph, cluster, ProfileChoice()))
    describe_domain(domain)
    return domain
