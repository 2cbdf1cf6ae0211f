"""`autosync quickstart`: everything once, on real input, as a client of the service."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import err, out, say
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl
from autosync.api.cli.output_files import check_writable, write_text
from autosync.errors import AutosyncError

if TYPE_CHECKING:
    from autosync.api.cli.service_process import Service
    from autosync.api.client.rest_client import Client
    from autosync.domain import Domain
    from autosync.graph import ModelGraph

MODEL, CLUSTER = "resnet50", "example-4x1"
REPEATS = 10
WARMUP, ITERATIONS = 1, 4
"""Of a pass; at time scale 2 an iteration is long beside what disturbs it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Numbers the steps on stderr."""

    started: float

    def say(self, number: int, text: str) -> None:
        seconds = time.monotonic() - self.started
        err.print(f"[bold cyan]{number}/5[/] {text} [dim]({seconds:.0f} s)[/]")


def quickstart(
    budget: Annotated[int, typer.Option(min=1, help="Strategies tried.")] = 12,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the bundle goes.")
    ] = Path("best.json"),
    port: Annotated[int, typer.Option(help="Of the service; 0 takes a free one.")] = 8080,
    db: DatabaseUrl = DEFAULT_DATABASE,
    stay: Annotated[
        bool | None,
        typer.Option("--stay/--leave", help="Keep the service up until Ctrl-C."),
    ] = None,
) -> None:
    """Tune ResNet-50 for a small cluster from scratch: about three minutes, no GPU needed.

    Starts the service on 127.0.0.1 with a worker, imports a real ResNet-50 module, posts it with
    a bundled cluster of 4 nodes (emulated on this machine, at scales that it prints), shows the
    search live, and ends with the ranked table, the bundle, and the two lines that apply it.

    Example: `autosync quickstart --budget 16 -o best.json`
    """
    from autosync.api.cli.service_process import Service
    from autosync.api.cli.stop_signals import unwind_on_sigterm
    from autosync.api.db.database import masked

    check_writable(output)
    unwind_on_sigterm()
    steps = Steps(time.monotonic())
    steps.say(1, f"creating the database {escape(masked(db))} and starting the service")
    with Service.started(db, port) as service:
        steps.say(2, f"importing a real ResNet-50 module for {CLUSTER}")
        domain = _domain()
        steps.say(3, f"tuning: {budget} strategies, then {REPEATS} interleaved repeats")
        tuning_id = _post(service.client, domain, budget)
        _follow(service.client, tuning_id, budget)
        steps.say(4, "done: the ranked strategies")
        _print(service.client, tuning_id, output)
        steps.say(5, "the dashboard has the whole history")
        _stay(service, tuning_id, db, stay)


def _domain() -> "Domain":
    """The module recorded here and now, on the bundled cluster."""
    from autosync.api.cli.arguments.domain_arguments import ProfileChoice, load_profile
    from autosync.api.cli.domain_summary import describe_domain
    from autosync.cluster_file import load_cluster
    from autosync.domain import Domain

    graph, cluster = _imported(), load_cluster(CLUSTER)
    domain = Domain(graph, cluster, load_profile(graph, cluster, ProfileChoice()))
    describe_domain(domain)
    return domain


def _imported() -> "ModelGraph":
    from autosync.importing import import_module
    from autosync.models import BUNDLED

    spec = BUNDLED[MODEL]
    module, inputs, loss = spec.build()
    return import_module(module, inputs, loss, name=MODEL, batch_size=spec.batch_size)


def _post(client: "Client", domain: "Domain", budget: int) -> str:
    """Queue the tuning through the service, at scales that two cores carry."""
    from autosync.api.cli.tuning_report import scale_words
    from autosync.trials.scales import automatic_scales

    byte_scale, time_scale = automatic_scales(domain)
    say(
        f"{scale_words(byte_scale, time_scale)}: every message carries that share of its bytes "
        "over links scaled alike, so that this machine stands in for the cluster"
    )
    tuning = client.tunings.start(
        domain.graph,
        CLUSTER,
        budget=budget,
        repeats=REPEATS,
        warmup=WARMUP,
        iterations=ITERATIONS,
        byte_scale=byte_scale,
        time_scale=time_scale,
    )
    say(f"[dim]watch it: {client.address}/tunings/{tuning.id}[/]")
    return tuning.id


def _follow(client: "Client", tuning_id: str, budget: int) -> None:
    """Live progress, from the service's stream of events.

    Raises:
        AutosyncError: the tuning failed.
    """
    from autosync.api.cli.progress import tuning_bar
    from autosync.api.cli.tuning_sources import progress_event

    with tuning_bar(budget, REPEATS) as bar:
        for event in client.tunings.events(tuning_id):
            bar.see(progress_event(event))
    tuning = client.tunings.get(tuning_id)
    if tuning.state != "finished":
        raise AutosyncError(
            f"the tuning {tuning.state}: {tuning.error or 'without an answer'}",
            thing="tuning",
            value=tuning_id,
            remedy=f"Look at {client.address}/tunings/{tuning_id}.",
        )


def _print(client: "Client", tuning_id: str, output: Path) -> None:
    from autosync.api.cli.tuning_report import print_results, print_two_lines

    tuning = client.tunings.get(tuning_id)
    print_results(tuning, client.tunings.strategies(tuning_id), ", ".join(tuning.ran_on))
    write_text(output, client.tunings.bundle_text(tuning_id))
    print_two_lines(output)


def _stay(service: "Service", tuning_id: str, db: str, stay: bool | None) -> None:
    """Leave the service up until Ctrl-C on a terminal; else say how to see the dashboard."""
    from autosync.api.db.database import masked

    address = f"{service.client.address}/tunings/{tuning_id}"
    if stay if stay is not None else sys.stdin.isatty() and err.is_terminal:
        out.print(f"Dashboard: [bold]{address}[/] (Ctrl-C ends the service)")
        service.wait()
        return
    out.print(f"Dashboard: [bold]{address}[/] after `autosync serve --db {escape(masked(db))}`")
