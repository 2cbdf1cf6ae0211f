"""`autosync predict`: what one known method takes on a cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.console import milliseconds, out, print_json, print_table
from api.cli.options import DeviceType, Efficiency, Json, ProfileFile, SimulatorName
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.domain import Domain
    from autosync.strategy import Strategy


def predict(
    model: Annotated[str, typer.Option(help="As in `autosync rank`.", show_default=False)],
    cluster: Annotated[str, typer.Option(help="As in `autosync rank`.", show_default=False)],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="A strategy file or the name of a hand-designed one; may be repeated.",
            show_default="all hand-designed ones",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Examples per replica.")] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            "--step-seconds-one-device", help="Seconds of one step on one device, if known."
        ),
    ] = None,
    simulator: Annotated[SimulatorName, typer.Option(help="What predicts.")] = "timeline",
    device: DeviceType = None,
    efficiency: Efficiency = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Predict what given strategies take on a cluster one need not have.

    Example:

        autosync predict --model resnet50 --batch 64 --cluster rtx-2080-ti-16x4-10gbe \\\\
            --strategy ddp --strategy dear --step-seconds-one-device 0.262
    """
    from api.cli.domain_words import describe_domain
    from api.cli.inputs import ProfileChoice, load_domain
    from api.registry import simulator_named
    from autosync.population import encode

    choice = ProfileChoice(profile, device, efficiency, step_seconds)
    domain = load_domain(model, cluster, batch, choice)
    describe_domain(domain)
    chosen = _chosen(domain, strategy or [])
    seconds = simulator_named(simulator).predict(domain, encode([s for _, s in chosen], domain))
    answers = [
        (name, float(each), domain.batch_size * domain.world_size / float(each))
        for (name, _), each in zip(chosen, seconds, strict=True)
    ]
    if json:
        keys = ("strategy", "predicted_seconds", "examples_per_second")
        print_json([dict(zip(keys, answer, strict=True)) for answer in answers])
        return
    rows = [(name, milliseconds(each), f"{rate:.1f}") for name, each, rate in answers]
    columns = ("strategy", "predicted ms", "examples/s")
    print_table(columns, sorted(rows, key=lambda row: -float(row[2])), right=columns[1:])
    out.print("[dim]Predictions: nothing was run.[/]")


def _chosen(domain: "Domain", names: list[str]) -> "list[tuple[str, Strategy]]":
    """The named strategies, verified; all hand-designed ones when none is named."""
    from pathlib import Path

    from api.cli.inputs import load_strategy, unknown_name
    from autosync.verify import verify
    from search.builders import BUILDERS, hand_designed
    from search.space import Space

    designs = dict(hand_designed(domain, Space()))
    chosen = []
    for name in names:
        if name in designs:
            chosen.append((name, designs[name]))
        elif name in BUILDERS:
            raise InvalidInput(
                f"{name!r} does not apply to {domain.graph.name} on {domain.cluster.name}.",
                thing="--strategy",
                value=name,
                remedy=f"These do: {', '.join(designs)}.",
            )
        elif Path(name).is_file():
            loaded = load_strategy(Path(name))
            verify(loaded, domain, allow_lossy=True, allow_staleness=True)
            chosen.append((name, loaded))
        else:
            raise unknown_name("strategy", name, list(designs), "A strategy file will do too.")
    return chosen or list(designs.items())
