"""`autosync tunings`, `show`, `logs`, `cancel`, `pause`, `resume`: of a database or a service."""

import threading
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from autosync.api.cli.added_options import uses_service
from autosync.api.cli.completion import complete_tuning
from autosync.api.cli.console import number_of_ms, out, print_json, print_table
from autosync.api.cli.options import Json
from autosync.api.cli.tuning_lookup import ENDED

if TYPE_CHECKING:
    from autosync.api.cli.connection import Connection
    from autosync.api.views.tuning_schemas import Tuning, TuningResult

TuningId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Its id, or the beginning of it.",
        show_default=False,
        autocompletion=complete_tuning,
    ),
]


@uses_service
def list_tunings(
    count: Annotated[int, typer.Option("--last", min=1, max=500, help="How many.")] = 20,
    *,
    at: "Connection",
    json: Json = False,
) -> None:
    """List tunings, the newest first.

    Those of a database, or of a service.

    Examples:

        autosync tunings
        autosync tunings --url http://tuner.example.com:8080 --last 5
    """
    found = at.client.tunings.list(limit=count).items
    if json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    columns = ("id", "state", "model", "cluster", "at", "trials", "best ms", "times DDP")
    print_table(columns, [_row(each) for each in found], right=("trials", "best ms", "times DDP"))


@uses_service
def show_tuning(
    tuning: TuningId,
    top: Annotated[int, typer.Option(min=1, help="Strategies listed.")] = 12,
    *,
    at: "Connection",
    json: Json = False,
) -> None:
    """Show a tuning: how far it is, its strategies ranked, its answer.

    It may be running: what is measured so far is shown.

    Examples:

        autosync show 3f2a90c1
        autosync show 3f2a90c1 --json --url http://localhost:8080
    """
    from autosync.api.cli.tuning_lookup import find_tuning
    from autosync.api.cli.tuning_report import curve_of, print_results, results_data

    found = find_tuning(at.client, tuning)
    ranked = at.client.tunings.strategies(found.id)
    measured_on, curve = ", ".join(found.ran_on), curve_of(at.client, found)
    if json:
        print_json(results_data(found, ranked, measured_on, curve=curve))
        return
    _print_head(found)
    if ranked.items:
        print_results(found, ranked, measured_on or "nothing yet", top, curve=curve)


@uses_service
def cancel_tuning(tuning: TuningId, *, at: "Connection") -> None:
    """Cancel a tuning. What was measured stays, and `autosync tune --resume ID` goes on with it.

    What runs for it is broken off within some two seconds.

    Examples:

        autosync cancel 3f2a90c1
        autosync cancel 3f2a90c1 --url http://localhost:8080
    """
    _change(at, tuning, "cancel")


@uses_service
def pause_tuning(tuning: TuningId, *, at: "Connection") -> None:
    """Pause a tuning: it stops after the trial that runs, until it is resumed.

    What it measured stays, and no worker takes it meanwhile.

    Examples:

        autosync pause 3f2a90c1
        autosync pause 3f2a90c1 --url http://localhost:8080
    """
    _change(at, tuning, "pause")


@uses_service
def resume_tuning(tuning: TuningId, *, at: "Connection") -> None:
    """Put a tuning that is paused, failed or was cancelled back into the queue.

    What it measured counts. A worker goes on with it; `autosync tune --resume ID` does so here.

    Examples:

        autosync resume 3f2a90c1
        autosync resume 3f2a90c1 --url http://localhost:8080
    """
    _change(at, tuning, "resume")


def _change(at: "Connection", prefix: str, verb: Literal["cancel", "pause", "resume"]) -> None:
    from autosync.api.cli.connection import free_from_dead_worker
    from autosync.api.cli.tuning_lookup import find_tuning

    tuning_id = find_tuning(at.client, prefix).id
    free_from_dead_worker(at, tuning_id)  # else a killed worker would have to answer
    changed = getattr(at.client.tunings, verb)(tuning_id)
    out.print(f"Tuning {changed.id[:8]} is {changed.state}.")


@uses_service
def print_events(
    tuning: TuningId,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Wait for more until the tuning has ended.")
    ] = False,
    *,
    at: "Connection",
) -> None:
    """Print what a tuning has reported, a line each: when, in which phase, what.

    It ends with what there is, or with -f when the tuning has ended.

    Examples:

        autosync logs 3f2a90c1
        autosync logs -f 3f2a90c1 --url http://localhost:8080
    """
    from autosync.api.cli.progress import events_until_end
    from autosync.api.cli.tuning_lookup import find_tuning

    once = threading.Event()
    if not follow:
        once.set()
    tuning_id = find_tuning(at.client, tuning).id
    for event in events_until_end(at.client, tuning_id, once):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        done = f" ({event.done} of {event.total})" if event.total else ""
        out.print(f"{when}  {event.kind:8} {escape(event.message)}{done}")
    state = at.client.tunings.get(tuning_id).state
    if state in ENDED:
        out.print(f"[dim]Tuning {tuning_id[:8]} is {state}.[/]")


def _row(tuning: "Tuning") -> tuple[str, ...]:
    answer = tuning.result
    progress = tuning.progress
    phase = f"{progress.phase} {progress.done}/{progress.total}" if progress.total else ""
    return (
        tuning.id[:8],
        tuning.state,
        escape(tuning.graph),
        escape(tuning.cluster),
        "" if tuning.state in ENDED else phase or progress.phase,
        str(progress.trials),
        number_of_ms(answer.best_seconds if answer else tuning.best_seconds),
        "" if answer is None else _speedup_words(answer),
    )


def _speedup_words(answer: "TuningResult") -> str:
    """For the column of speed-ups over DDP; what is over another design says so."""
    if answer.keep_ddp:
        return "keep DDP"
    other = f" over {answer.compared_with}" if answer.ddp_seconds is None else ""
    return f"{answer.speedup:.2f}{other}"


def _print_head(tuning: "Tuning") -> None:
    progress = tuning.progress
    batches = f" x {tuning.accumulate} per update" if tuning.accumulate > 1 else ""
    out.print(
        f"[bold]{escape(tuning.graph)}[/], batch {tuning.batch_size}{batches}, on "
        f"[bold]{escape(tuning.cluster)}[/] ({tuning.world_size} ranks): {tuning.state}"
    )
    out.print(
        f"Tuning {tuning.id}; ranked by {escape(tuning.simulator)}, measured by launcher "
        f"{tuning.launcher}; {progress.ranked} proposals ranked, {progress.trials} trials"
    )
    if tuning.result is None and progress.message:
        when = "Before its end" if tuning.state in ENDED else "Now"
        out.print(f"{when}: {progress.phase}: {escape(progress.message)}")
    if tuning.error:
        out.print(f"[red]{escape(tuning.error)}[/]")
