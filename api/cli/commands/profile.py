"""`autosync profile`: the compute seconds of each operation."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import number_of_ms, out, print_json, print_table, say, warn
from autosync.api.cli.options import Autocast, Batch, Efficiency, Model, Output, StepSeconds
from autosync.api.cli.output_files import check_writable, write_text

if TYPE_CHECKING:
    from autosync.domain import Profile
    from autosync.graph import ModelGraph

SLOWEST = 8
"""Operations listed."""


def profile(
    model: Model,
    output: Output = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Measure on this GPU (cuda:0), or estimate for this device type (v100, a100, ...)."
        ),
    ] = None,
    efficiency: Efficiency = None,
    step_seconds: StepSeconds = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Steps measured.", show_default="5")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Take the seconds from this trace of torch.profiler (.json, .json.gz) or Chakra; "
            "--device: what it was taken on, by default as the trace says."
        ),
    ] = None,
    batch: Batch = None,
    autocast: Autocast = None,
    json: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure a model's operations on this machine's CPU or GPU, or estimate them for a device.

    `rank` and `tune` take what is measured in the estimate's place (--profile).

    Examples:

        autosync profile resnet50 --batch 4 -o cpu.json       # measured here
        autosync profile resnet50 --device cuda:0 -o gpu.json # measured by CUDA events
        autosync profile train:example --device cuda:0 --autocast bfloat16 -o gpu.json
        autosync profile resnet50 --device v100               # a roofline, marked as an estimate
        autosync profile resnet50 --device v100 --step-seconds 0.105 -o v100.json
        autosync profile mine.json --device v100 --trace trace.json -o v100.json
        autosync profile mine.json --device v100 --trace chakra.json -o v100.json
    """
    from autosync.documents import to_data, to_json

    if output is not None:
        check_writable(output)
    if trace is not None:
        from autosync.api.engine.request_checks import refuse_given

        given = {
            "--efficiency": efficiency,
            "--step-seconds": step_seconds,
            "--iterations": iterations,
        }
        remedy = "Leave out one of both."
        refuse_given(given, "beside --trace, which has the seconds", remedy)
        graph, found = _traced(model, batch, device, trace, autocast)
    else:
        graph, found = _found(model, batch, device, efficiency, step_seconds, iterations, autocast)
    found = replace(found, forward_flops=graph.forward_flops)
    if output is not None:
        write_text(output, to_json(found))
        say(f"[dim]written to {escape(str(output))}[/]")
    if json:
        print_json(to_data(found))
    else:
        _print(graph, found)


def _found(
    model: str,
    batch: int | None,
    device: str | None,
    efficiency: float | None,
    step_seconds: float | None,
    iterations: int | None,
    autocast: str | None,
) -> "tuple[ModelGraph, Profile]":
    from autosync.api.cli.model_arguments import (
        RecordingChoice,
        autocast_type,
        foreign_name,
        is_foreign_module,
        load_graph,
        load_module,
        recorded_graph,
    )
    from autosync.compute_settings import ComputeSettings, profile_at
    from autosync.profiling import measure_profile, torch_device

    on_gpu = device is not None and device.startswith("cuda")
    estimated = efficiency is not None or step_seconds is not None
    if estimated or (device is not None and not on_gpu):
        from autosync.api.engine.request_checks import refuse_given

        refuse_given(
            {"--iterations": iterations},
            "on an estimate, for which nothing runs",
            "Leave it out, or leave out --step-seconds, --efficiency and a --device that is no GPU "
            "of this machine.",
        )
        graph = load_graph(model, batch, RecordingChoice(autocast=autocast))
        settings = ComputeSettings(step_seconds=step_seconds, efficiency=efficiency)
        return graph, profile_at(graph, device or "cpu", settings)
    from autosync.importing.several_examples import moved_examples

    place = torch_device(device or "cpu")
    module, inputs, loss, size = load_module(model, batch)
    say(f"[dim]running the model on {device if on_gpu else 'the CPU of this machine'}[/]")
    name = foreign_name(model) if is_foreign_module(model) else model.partition(":")[2] or model
    # with values, since it runs here anyway
    graph = recorded_graph(module, inputs, loss, name, size, values=True, autocast=autocast)
    module.to(place)
    inputs = moved_examples(inputs, place)
    measured = measure_profile(
        module,
        inputs,
        loss,
        graph,
        iterations=iterations or 5,
        device=str(place),
        autocast=autocast_type(autocast),
    )
    return graph, measured


def _traced(
    model: str, batch: int | None, device: str | None, trace: Path, autocast: str | None
) -> "tuple[ModelGraph, Profile]":
    from autosync.api.cli.domain_arguments import read_bytes
    from autosync.api.cli.model_arguments import RecordingChoice, load_graph
    from autosync.interop.trace_profile import MAX_TRACE_BYTES, read_trace_profile

    graph = load_graph(model, batch, RecordingChoice(autocast=autocast))
    data = read_bytes(trace, "trace", MAX_TRACE_BYTES)
    found = read_trace_profile(data, graph, device, str(trace))
    if found.estimated:
        listed = ", ".join(f"{kind} ({count})" for kind, count in sorted(found.estimated.items()))
        told = f"{trace}: operations that are not in it as often as in the graph: {listed}"
        warn(escape(told))
    return graph, found.profile


def _print(graph: "ModelGraph", found: "Profile") -> None:
    word = {"measured": "measured", "estimated": "[bold yellow]an estimate[/]"}[found.source]
    out.print(
        f"{escape(graph.name)} at batch size {found.batch_size} on {escape(found.device)}: forward "
        f"{number_of_ms(sum(found.forward_seconds))} ms, backward "
        f"{number_of_ms(sum(found.backward_seconds))} ms, update "
        f"{number_of_ms(found.update_seconds)} ms ({word}: {escape(found.note)})"
    )
    both = [
        (forward + backward, forward, backward, operation)
        for forward, backward, operation in zip(
            found.forward_seconds, found.backward_seconds, graph.operations, strict=True
        )
    ]
    slowest = sorted(both, key=lambda row: -row[0])[:SLOWEST]
    print_table(
        ("slowest operations", "type", "forward ms", "backward ms"),
        [
            (escape(o.name), escape(o.type), f"{f * 1e3:.2f}", f"{b * 1e3:.2f}")
            for _, f, b, o in slowest
        ],
        right=("forward ms", "backward ms"),
    )
