"""`autosync verify`: whether a strategy fits a domain and synchronizes it exactly."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import out, warn
from autosync.api.cli.options import Batch, ClusterName, Model, Optimizer
from autosync.api.prediction_spec import PlacedJobSpec


def verify(
    strategy: Annotated[
        Path,
        typer.Argument(metavar="STRATEGY", help="A strategy or bundle file.", show_default=False),
    ],
    model: Model,
    cluster: ClusterName,
    batch: Batch = None,
    optimizer: Optimizer = None,
    accumulate: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=PlacedJobSpec.model_fields["accumulate"].description,
            show_default="as the bundle was measured, else 1",
        ),
    ] = None,
    allow_lossy: Annotated[bool, typer.Option(help="Allow lossy encodings.")] = False,
    allow_inexact: Annotated[bool, typer.Option(help="Allow updates that are late.")] = False,
) -> None:
    """Check that a strategy fits a model, a cluster and the memory of its devices, and synchronizes
    every variable.

    What does not fit is refused with the numbers, and with what would make it fit.
    Says so where it can be predicted but not run (owners on dedicated server hosts).
    Strategies that are not exact are refused unless they are allowed.

    Example: `autosync verify best.json resnet50 example-4x1`
    """
    from autosync.api.cli.domain_arguments import (
        ProfileChoice,
        load_domain,
        load_strategy_or_bundle,
    )
    from autosync.bundle import Bundle
    from autosync.errors import NotSupported
    from autosync.simulator.memory.memory_check import check_memory
    from autosync.strategy_description import describe
    from autosync.verification import check_runnable
    from autosync.verification import verify as check

    loaded, measured = load_strategy_or_bundle(strategy), 1
    if isinstance(loaded, Bundle):
        measured, loaded = loaded.evidence.accumulate, loaded.strategy
    domain = load_domain(model, cluster, batch, ProfileChoice(), optimizer)
    domain = replace(domain, accumulate=accumulate or measured)
    check(loaded, domain, allow_lossy=allow_lossy, allow_inexact=allow_inexact)
    check_memory(loaded, domain)
    out.print(f"[green]Sound:[/] {escape(describe(loaded, domain))}")
    try:
        check_runnable(loaded.choices, domain.world_size)
    except NotSupported as reason:
        warn(escape(reason.message))
