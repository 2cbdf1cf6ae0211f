"""`autosync scale`: what a job reaches on more nodes, before one buys them."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.commands.predictions.job_options import GivenJob, predicts_job
from autosync.api.cli.completion import complete_design
from autosync.api.cli.console import between_ms, number_of_ms, out, print_json, print_table, warn
from autosync.api.cli.options import SimulatorName
from autosync.api.prediction_spec import MOST_NODE_COUNTS, MOST_NODES
from autosync.errors import InvalidInput
from autosync.units import number_in_words

if TYPE_CHECKING:
    from autosync.api.views.schemas import ScaledPoint


@predicts_job
def scale(
    job: GivenJob,
    nodes: Annotated[
        str,
        typer.Option(
            metavar="N,...", help="Numbers of nodes; more than the file has repeat its node."
        ),
    ] = "1,2,4,8,16,32",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A hand-designed strategy or a published method, as of `autosync predict`.",
            autocompletion=complete_design,
        ),
    ] = "ddp",
    simulator: SimulatorName = "timeline",
) -> None:
    """Predict what a job reaches on 1, 2, 4, ... nodes: throughput, efficiency and what binds it.

    The batch of a replica stays, so that more nodes train on more samples a step. Where the cluster
    file states prices, samples a dollar stand beside. The knee is the number of nodes beyond which
    a further one brings less than half of what the first brought.

    Examples:

        autosync scale gpt2_medium aws-p5-48xlarge-x4
        autosync scale resnet50 aws-p3-16xlarge-x4 --nodes 1,4,16,64 --step-seconds 0.085 --json
    """
    domain = job.domain
    found = job.client.scale(
        domain.graph,
        domain.cluster,
        read_counts(nodes),
        strategy=strategy,
        simulator=simulator,
        **job.arguments,
    )
    for warning in found.warnings:
        warn(escape(warning))
    if job.json:
        print_json(found.model_dump(exclude={"warnings"}))
        return
    _print(found.points, found.knee_nodes)


def read_counts(text: str) -> tuple[int, ...]:
    """
    Raises:
        InvalidInput: names what is no number of nodes.
    """
    found = set()
    for word in text.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= MOST_NODES:
            raise InvalidInput(
                f"{word.strip()[:40]!r} is no number of nodes.",
                thing="--nodes",
                value=word.strip()[:40],
                remedy="Write numbers with commas between them: 1,2,4,8.",
            )
        found.add(int(word))
    if len(found) > MOST_NODE_COUNTS:
        raise InvalidInput(
            f"{len(found)} numbers of nodes are more than {MOST_NODE_COUNTS}.",
            thing="--nodes",
            value=len(found),
            remedy=f"Ask for {MOST_NODE_COUNTS} at most.",
        )
    return tuple(sorted(found))


def _print(points: "list[ScaledPoint]", knee: int | None) -> None:
    priced = any(point.samples_per_dollar for point in points)
    rows = [
        (
            str(point.nodes),
            str(point.ranks),
            number_of_ms(point.step_seconds),
            between_ms(point.low_seconds, point.high_seconds),
            number_in_words(point.samples_per_second),
            f"{point.efficiency:.0%}",
            point.binding,
            *((_for_a_dollar(point),) if priced else ()),
        )
        for point in points
    ]
    columns = ["nodes", "ranks", "predicted ms", "between", "samples/s", "efficiency", "bound by"]
    right = columns[:6]
    if priced:
        columns.append("samples/$")
        right = [*right, "samples/$"]
    print_table(columns, rows, right=right)
    if knee is None:
        out.print("Every further node brings at least half of what the first brought.")
    else:
        out.print(f"The knee: beyond [bold]{knee}[/] nodes a further one brings less than half.")
    out.print("[dim]Predictions: nothing was run.[/]")


def _for_a_dollar(point: "ScaledPoint") -> str:
    """Samples; empty where one of its nodes has no price."""
    return "" if point.samples_per_dollar is None else number_in_words(point.samples_per_dollar)
