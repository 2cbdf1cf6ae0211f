"""`autosync dataset`: measured strategies, and files of AutoSync's public dataset and AutoDist."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import number_of_ms, out, print_json, print_table, say
from autosync.api.cli.options import Batch, ClusterName, Json, Model, RequiredOutput
from autosync.api.cli.output_files import write_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    name="dataset",
    no_args_is_help=True,
    help="Look into measured datasets, and exchange them with AutoDist and AutoSync's public "
    "dataset.\n\nWhat the other side cannot say is left out, counted and named.",
)

Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="Holds trials.parquet and domains/.", show_default=False),
]
AllowLossy = Annotated[
    bool, typer.Option(help="Take strategies with lossy compressors (fp16, PowerSGD) too.")
]


@app.command()
def describe(
    folder: Folder,
    json: Json = False,
    datasheet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the datasheet (Markdown) to this file."),
    ] = None,
) -> None:
    """Show what a dataset holds: its domains, strategies, repeatability and scales.

    Example: `autosync dataset describe datasets/runtimes --datasheet datasheet.md`
    """
    from dataclasses import asdict

    from autosync.simulator.dataset_description import datasheet as text_of
    from autosync.simulator.dataset_description import summaries
    from autosync.simulator.runtime_dataset import load_dataset, read_trials

    measured, trials = load_dataset(folder), read_trials(folder)
    if datasheet is not None:
        write_text(datasheet, text_of(measured, trials))
        say(f"[dim]written to {escape(str(datasheet))}[/]")
    found = summaries(measured, trials)
    if json:
        print_json([asdict(each) for each in found])
        return
    numbers = (
        "ranks",
        "strategies",
        "picks",
        "failed",
        "fastest ms",
        "DDP ms",
        "slowest ms",
        "noise",
    )
    rows = [
        (
            escape(each.model),
            escape(each.cluster),
            str(each.world_size),
            str(each.strategies),
            str(each.picks),
            str(each.failed),
            number_of_ms(each.fastest_seconds),
            number_of_ms(each.ddp_seconds),
            number_of_ms(each.slowest_seconds),
            "-" if each.noise is None else f"{each.noise:.1%}",
            ", ".join(f"{scale:g}" for scale in each.byte_scales),
            ", ".join(f"{scale:g}" for scale in each.time_scales),
        )
        for each in found
    ]
    print_table(("model", "cluster", *numbers, "s", "k"), rows, right=numbers)


@app.command("import")
def import_folder(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Holds MODEL/graph_item.", show_default=False),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The dataset's folder.", show_default=False)
    ],
    facts: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="YAML with what the files do not say.", show_default=False
        ),
    ],
    allow_lossy: AllowLossy = False,
) -> None:
    """Read the layout of AutoSync's public dataset into a dataset.

    Its files do not say how long a step computes, on which devices, or how large a batch is. FACTS
    states it, by folder:

        clusters:
          cluster-A: {gpu_type: titan-x}
        models:
          resnet101: {batch_size: 32, step_seconds: 0.31}

    Example: `autosync dataset import public OUT --facts facts.yaml`
    """
    from collections import Counter

    from autosync.simulator.published_dataset import import_dataset, read_facts

    done = import_dataset(folder, target, read_facts(facts), allow_lossy=allow_lossy)
    out.print(
        f"[bold]{len(done.trials)}[/] samples of {len(done.domains)} domains written to "
        f"{escape(str(target))}"
    )
    _print_left_out(Counter(each.reason for each in done.left_out))
    shown = {each.reason: each for each in reversed(done.left_out)}
    for each in shown.values():
        say(f"[dim]{escape(f'{each.sample}: {each.message}')}[/]")


@app.command("export-strategy")
def export_one(
    strategy: Annotated[
        Path,
        typer.Argument(metavar="STRATEGY", help="A strategy or bundle file.", show_default=False),
    ],
    model: Model,
    cluster: ClusterName,
    output: RequiredOutput,
    batch: Batch = None,
    allow_lossy: AllowLossy = False,
) -> None:
    """Write a strategy as AutoDist's strategy file (protobuf), or say why it cannot be.

    Example: `autosync dataset export-strategy best.json resnet50 example-4x1 -o strategy`
    """
    from autosync.api.cli.domain_arguments import (
        ProfileChoice,
        load_domain,
        load_strategy,
    )
    from autosync.interop.autodist_strategy import export_strategy

    domain = load_domain(model, cluster, batch, ProfileChoice())
    write_bytes(output, export_strategy(load_strategy(strategy), domain, allow_lossy=allow_lossy))
    say(f"[dim]written to {escape(str(output))}[/]")


@app.command("import-strategy")
def import_one(
    strategy: Annotated[
        Path,
        typer.Argument(metavar="STRATEGY", help="AutoDist's strategy file.", show_default=False),
    ],
    model: Model,
    cluster: ClusterName,
    output: RequiredOutput,
    batch: Batch = None,
    allow_lossy: AllowLossy = False,
) -> None:
    """Read AutoDist's strategy file (protobuf) for a model and a cluster.

    Variables go by their names in the model, devices by "host:GPU:0" or "host:CPU:0" with the
    cluster's addresses.

    Example: `autosync dataset import-strategy strategy resnet50 example-4x1 -o mine.json`
    """
    from autosync.api.cli.domain_arguments import ProfileChoice, load_domain, read_bytes
    from autosync.documents import to_json
    from autosync.interop.autodist_strategy import import_strategy
    from autosync.strategy_description import describe as sentence

    domain = load_domain(model, cluster, batch, ProfileChoice())
    found = import_strategy(
        read_bytes(strategy, "strategy"), domain, allow_lossy=allow_lossy, source=str(strategy)
    )
    write_text(output, to_json(found))
    out.print(escape(sentence(found, domain)))
    say(f"[dim]written to {escape(str(output))}[/]")


def _print_left_out(reasons: "Mapping[str, int]") -> None:
    if not reasons:
        return
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    print_table(
        ("left out", "because it"),
        [(str(count), escape(reason)) for reason, count in ordered],
        right=("left out",),
    )
