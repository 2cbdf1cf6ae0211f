"""`autosync models`: the bundled models."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.completion import complete_model
from autosync.api.cli.console import out, print_json, print_table
from autosync.api.cli.options import Batch, Json

if TYPE_CHECKING:
    from autosync.graph import ModelGraph

LARGEST = 8
"""Variables that one model's page lists."""


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Show this one.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    batch: Batch = None,
    json: Json = False,
) -> None:
    """List the bundled models by family, or show one: its size, its compute, its largest variables.

    Your own model needs no registration: `autosync rank my.package:function CLUSTER`.

    Examples:

        autosync models
        autosync models bert_base
        autosync models resnet50 --json > graph.json
    """
    from autosync.api.cli.model_arguments import load_graph
    from autosync.models import BUNDLED

    if name is not None:
        _show(load_graph(name, batch), json)
        return
    from autosync.api.engine.request_checks import refuse_given

    refuse_given({"--batch": batch}, "on the list of models", "Leave it out, or name a model.")
    specs = list(BUNDLED.values())
    if json:
        print_json(
            [
                {
                    "name": spec.name,
                    "title": spec.title,
                    "batch_size": spec.batch_size,
                    "parameters": spec.parameters,
                    "family": spec.family,
                    "source": spec.source,
                }
                for spec in specs
            ]
        )
        return
    rows = [
        (
            *(spec.family, spec.name, spec.title, str(spec.batch_size)),
            *(f"{spec.parameters / 1e6:.1f} M", spec.source),
        )
        for spec in specs
    ]
    columns = ("family", "name", "model", "batch", "parameters", "published")
    print_table(columns, rows, right=("batch", "parameters"))


def _show(graph: "ModelGraph", json: bool) -> None:
    from autosync.documents import to_data

    if json:
        print_json(to_data(graph))
        return
    sparse = sum(each.sparse for each in graph.variables)
    out.print(
        f"[bold]{escape(graph.name)}[/], batch {graph.batch_size} a replica: "
        f"{len(graph.operations)} operations, {graph.flops / 1e9:.1f} GFLOP a step; "
        f"{len(graph.variables)} variables, "
        f"{graph.size_bytes / 1e6:.1f} MB" + (f", {sparse} with sparse gradients" if sparse else "")
    )
    largest = sorted(graph.variables, key=lambda each: -each.size_bytes)[:LARGEST]
    rows = [
        (
            escape(each.name),
            " x ".join(map(str, each.shape)),
            each.dtype,
            f"{each.size_bytes / 1e6:.2f}",
            f"{each.size_bytes / graph.size_bytes:.0%}",
        )
        for each in largest
    ]
    print_table(
        ("largest variables", "shape", "type", "MB", "of all"), rows, right=("MB", "of all")
    )
