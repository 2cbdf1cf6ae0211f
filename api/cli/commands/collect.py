"""`autosync collect`: a dataset of measured strategies."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from autosync.api.cli.console import say
from autosync.environment import REPEATS_VARIABLE
from autosync.trials.request_names import LauncherName


def collect(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The dataset; what it holds already is not measured again.",
            show_default=False,
        ),
    ],
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What to measure.", show_default="datasets/runtimes/plan.yaml"
        ),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these of the plan's domains; may be repeated."),
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Measure this domain anew; once whole, that replaces what FOLDER holds of it. "
            "May be repeated.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Stop after so many; the same command goes on.", show_default="no limit"
        ),
    ] = None,
    launcher: Annotated[LauncherName, typer.Option(help="As in `autosync tune`.")] = "testbed",
) -> None:
    """Measure many strategies of several domains, as simulators learn from.

    Hours, with the machine left alone. Ctrl-C and SIGTERM stop after the trial that runs and a
    control, or at once while nothing is measured; the same command goes on from there.

    Example: `autosync collect runtimes --domain resnet50-4x1`
    """
    from autosync.api.cli.stop_signals import stop_on_signals

    stop = stop_on_signals()  # before what takes seconds to load
    import time

    from autosync.api.engine.registry import launcher_named
    from autosync.bundled_data import data_file
    from autosync.search.collect.collection import collect as measure
    from autosync.search.collect.collection_plan import load_plan, select_targets
    from autosync.trials.contract import reporting_waits

    anew = tuple(again or ())
    names = tuple(dict.fromkeys((*(domain or ()), *anew)))
    asked = select_targets(load_plan(plan or data_file("runtimes", "plan.yaml")), names)
    end = float("inf") if minutes is None else time.monotonic() + 60 * minutes

    def stopped() -> bool:
        return stop.is_set() or time.monotonic() >= end

    os.environ[REPEATS_VARIABLE] = "0"  # a third pass, much later, tells more than one at once
    where = reporting_waits(launcher_named(launcher), say)
    measure(asked, folder, where, say, stopped, anew)
    say("Stopped: the same command goes on." if stopped() else f"Written to {escape(str(folder))}.")
