"""`autosync explain`: a strategy or bundle in words."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.console import milliseconds, out, print_json, print_table
from api.cli.options import Json

if TYPE_CHECKING:
    from autosync.bundle import Bundle
    from autosync.plan import Message, Plan
    from autosync.strategy import Strategy

SHOWN = 12
"""Variables listed without --all."""


def explain(
    document: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE|STRATEGY", help="A bundle or strategy file.", show_default=False
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="List every variable.")] = False,
    json: Json = False,
) -> None:
    """Say in words what a bundle or a strategy does, variable by variable.

    Example: `autosync explain best.json`
    """
    from api.cli.inputs import load_strategy_or_bundle
    from autosync.documents import to_data
    from autosync.strategy import Strategy

    loaded = load_strategy_or_bundle(document)
    if json:
        print_json(to_data(loaded))
    elif isinstance(loaded, Strategy):
        _print_strategy(loaded, every)
    else:
        _print_strategy(loaded.strategy, every)
        _print_bundle(loaded)


def _print_strategy(strategy: "Strategy", every: bool) -> None:
    from search.describe import describe

    out.print(f"[bold]{strategy.name or 'Strategy'}[/]: {describe(strategy)}")
    shown = strategy.choices if every else strategy.choices[:SHOWN]
    rows = []
    for choice in shown:
        axis, lengths = choice.partition.axis, choice.partition.lengths
        cut = "flat" if axis < 0 else f"axis {axis}"
        parts = "whole" if len(lengths) == 1 else f"{len(lengths)} parts, {cut}"
        kinds = dict.fromkeys(shard.kind.replace("_", " ") for shard in choice.shards)
        groups = sorted({shard.group for shard in choice.shards})
        span = str(groups[0]) if len(groups) == 1 else f"{groups[0]}-{groups[-1]}"
        rows.append((choice.variable, parts, ", ".join(kinds), span))
    print_table(("variable", "partition", "synchronizer", "group"), rows, right=("group",))
    if len(shown) < len(strategy.choices):
        out.print(f"[dim]... and {len(strategy.choices) - len(shown)} more; --all lists them.[/]")


def _print_bundle(shipped: "Bundle") -> None:
    plan, evidence = shipped.plan, shipped.evidence
    out.print(f"\n[bold]Plan[/] {plan.id[:12]}: {_plan_words(plan)}")
    hosts = list(dict.fromkeys(shipped.hosts))
    out.print(f"[bold]For[/] {len(shipped.hosts)} ranks on {', '.join(hosts)} ({shipped.backend})")
    if evidence.step_seconds is not None:
        against = (
            f", DDP {milliseconds(evidence.ddp_step_seconds)} ms"
            if evidence.ddp_step_seconds
            else ""
        )
        where = evidence.measured_on
        out.print(f"[bold]Measured[/] {milliseconds(evidence.step_seconds)} ms{against} on {where}")
    elif evidence.predicted_seconds is not None:
        out.print(f"[bold]Predicted[/] {milliseconds(evidence.predicted_seconds)} ms, not measured")


def _plan_words(plan: "Plan") -> str:
    if plan.engine == "ddp":
        return f"torch's own DDP with buckets of {plan.bucket_bytes / 2**20:.0f} MiB"
    counts: dict[str, int] = {}
    for message in plan.messages:
        counts[_operation(message)] = counts.get(_operation(message), 0) + 1
    return (
        f"{len(plan.messages)} messages an iteration ("
        + ", ".join(f"{count} {name}" for name, count in counts.items())
        + ")"
    )


def _operation(message: "Message") -> str:
    return message.operation.name.lower().replace("_", "-")
