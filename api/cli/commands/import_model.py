"""`autosync import`: from a module to its graph."""

from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, print_json, say
from autosync.api.cli.options import Autocast, Batch, Model, Output
from autosync.api.cli.output_files import write_text


def import_model(
    model: Model,
    output: Output = None,
    batch: Batch = None,
    values: Annotated[
        bool, typer.Option("--values", help="Run a step that depends on values on the CPU.")
    ] = False,
    length: Annotated[
        int | None,
        typer.Option("--length", min=1, help="Tokens in a sentence, of a config or ONNX file."),
    ] = None,
    autocast: Autocast = None,
) -> None:
    """Record a model's dataflow graph, without allocating its weights.

    The graph is data: `rank`, `tune` and a service take it in the model's place, and execute
    nothing in it.

    Examples:

        autosync import resnet50 -o resnet50.json
        autosync import train:example -o mine.json     # def example(): return module, inputs, loss
        autosync import train:detector --values -o detector.json    # boxes are matched to targets
        autosync import llama/config.json --batch 4 --length 1024 -o llama.json
        autosync import timm:convnext_base --batch 64 -o convnext.json
        autosync import exported.onnx --batch 32 -o exported.json
    """
    from autosync.api.cli.model_arguments import RecordingChoice, load_graph
    from autosync.documents import to_data, to_json
    from autosync.graph import seen_by_count

    graph = load_graph(model, batch, RecordingChoice(values, length, autocast))
    if output is None:
        print_json(to_data(graph))
        return
    write_text(output, to_json(graph))
    frozen = f", {graph.frozen_bytes / 1e6:.0f} MB frozen" if graph.frozen_bytes else ""
    out.print(
        f"{escape(graph.name)}: {len(graph.operations)} operations, "
        f"{len(graph.variables)} variables, "
        f"{graph.parameters / 1e6:.1f} M parameters ({graph.size_bytes / 1e6:.0f} MB{frozen}), "
        f"{graph.flops / 1e9:.0f} GFLOP a step at batch size {graph.batch_size}"
    )
    if graph.examples > 1:
        counted = ", ".join(f"{number} in {seen}" for seen, number in seen_by_count(graph).items())
        out.print(f"{graph.examples} example inputs; operations seen: {counted}")
    say(f"[dim]written to {escape(str(output))}[/]")
