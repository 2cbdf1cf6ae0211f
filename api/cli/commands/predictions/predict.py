"""`autosync predict`: what known methods take on a cluster one need not have."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.commands.predictions.job_options import GivenJob, predicts_job
from autosync.api.cli.completion import complete_design
from autosync.api.cli.console import (
    between_ms,
    number_of_ms,
    out,
    print_json,
    print_table,
    say,
    warn,
)
from autosync.api.cli.options import SimulatorName
from autosync.units import percent_in_words

if TYPE_CHECKING:
    from autosync.api.views.schemas import GivenPredictions
    from autosync.cluster import Cluster
    from autosync.strategy import Strategy


@predicts_job
def predict(
    job: GivenJob,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="A hand-designed strategy, a published method (WFBP-A2A, MG-WFBP, BSP-PS, ...; "
            "see docs/gpu-clusters.md) or a strategy file; may be repeated.",
            show_default="all hand-designed ones",
            autocompletion=complete_design,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="System whose time for each message is added (bytescheduler), or none.",
            show_default="that of the published method",
        ),
    ] = None,
    constants: Annotated[
        str,
        typer.Option(
            help="Fitted constants: auto (by the cluster's name; of other NCCL clusters those of "
            "their classes of links, transports and GPUs), none, or a name."
        ),
    ] = "auto",
    simulator: SimulatorName = "timeline",
) -> None:
    """Predict what given strategies take on a cluster one need not have.

    Published methods are predicted with the constants fitted on their testbed. An interval stands
    beside each prediction; beyond what was measured it is wider, and a warning says why.

    Examples:

        autosync predict resnet50 rtx-2080-ti-16x4-10gbe
        autosync predict resnet50 rtx-2080-ti-8x4-10gbe --batch 64 --step-seconds 0.2529 \\
            --strategy MG-WFBP --strategy dear
    """
    from autosync.api.cli.domain_arguments import load_strategy

    domain = job.domain
    names = strategy or []
    given: list[str | Strategy] = [
        load_strategy(Path(name)) if Path(name).is_file() else name for name in names
    ]
    found = job.client.predict(
        domain.graph,
        domain.cluster,
        given,
        engine=engine,
        constants=constants,
        simulator=simulator,
        **job.arguments,
    )
    for each, name in zip(found.items, names, strict=False):
        each.strategy = name
    _say_constants(domain.cluster, found)
    for warning in dict.fromkeys(w for answer in found.items for w in answer.warnings):
        warn(escape(warning))
    if job.json:
        print_json([each.model_dump(mode="json") for each in found.items])
        return
    rows = [
        (
            escape(each.strategy),
            number_of_ms(each.predicted_seconds),
            between_ms(each.low_seconds, each.high_seconds),
            f"{each.samples_per_second:.1f}",
            percent_in_words(each.percent_of_limit),
            each.binding,
            f"{each.predicted_peak_bytes / 1e9:.2f}{'' if each.fits else ', does not fit'}",
        )
        for each in sorted(found.items, key=lambda each: each.predicted_seconds)
    ]
    columns = (
        "strategy", "predicted ms", "between", "samples/s", "of the limit", "bound by", "GB a rank"
    )  # fmt: skip
    print_table(columns, rows, right=(*columns[1:5], columns[6]))
    out.print("[dim]Predictions: nothing was run.[/]")


def _say_constants(cluster: "Cluster", found: "GivenPredictions") -> None:
    """Which numbers are measured and which are assumed, on stderr."""
    kinds = ", ".join(cost.kind for cost in cluster.costs) or "none"
    say(f"Rates are those of the cluster file; startups it states: {kinds}.")
    if found.constants is None:
        warn(
            "no constants were fitted on such a cluster: startups that it does not state are "
            "assumed, compute is that of one device alone, and engines cost nothing."
        )
        return
    say(
        f"Constants [bold]{found.constants}[/]: {found.constants_fitted}. Measured: "
        f"{found.constants_measured}. How far they carry: docs/gpu-clusters.md."
    )
