"""`autosync explain`: a strategy, a bundle or a tuning's answer in words."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from autosync.api.cli.completion import complete_tuning
from autosync.api.cli.console import number_of_ms, out, print_json, print_table, say
from autosync.api.cli.options import DEFAULT_DATABASE, DatabaseUrl, Json, ServiceUrl
from autosync.api.cli.output_files import write_text
from autosync.errors import InvalidInput
from autosync.units import MIB

if TYPE_CHECKING:
    from autosync.api.client.rest_client import Client
    from autosync.api.views.timeline_schemas import Timeline
    from autosync.bundle import Bundle
    from autosync.domain import Domain
    from autosync.plan import Message, Plan
    from autosync.simulator.explanation import Explanation
    from autosync.simulator.timeline.trace_comparison import Difference
    from autosync.strategy import Strategy


def print_prediction(
    strategy: "Strategy", domain: "Domain", limit_seconds: float | None = None
) -> None:
    """What compute, updates, transfers and startups add to the iteration; peak memory a rank.

    limit_seconds: of the strategies that might be chosen; by default of all exact ones.
    """
    from autosync.simulator.explanation import explain

    found = explain(domain, strategy)
    if limit_seconds is not None:
        found = replace(found, limit_seconds=limit_seconds)
    out.print(f"\n[bold]Predicted[/] {escape(str(found))}")
    out.print(f"[bold]Peak memory[/] {_memory_words(found)}")
    for extension, words in found.extensions:
        out.print(f"[bold]{extension.capitalize()}[/] {escape(words)}", highlight=False)


def _memory_words(found: "Explanation") -> str:
    gigabytes = sorted({f"{peak / 1e9:.2f}" for peak in found.peak_memory_bytes}, key=float)
    words = f"{gigabytes[0]} GB a rank"
    if len(gigabytes) > 1:
        peaks = found.peak_memory_bytes
        words = f"{gigabytes[0]} to {gigabytes[-1]} GB a rank, most on {peaks.index(max(peaks))}"
    words += ", predicted"
    if short := found.ranks_out_of_memory:
        words += f"; more than the devices of ranks {', '.join(map(str, short))} have"
    return words


SHOWN_CELLS = 10
"""Messages listed, those that differ most."""
COLUMNS = (
    "message",
    "operation",
    "kB",
    "predicted ms",
    "measured ms",
    "predicted at",
    "measured at",
)


def print_timeline(timeline: "Timeline") -> None:
    """Both periods, and where measured and predicted differ most."""
    predicted, measured = timeline.predicted, timeline.measured
    words = f"\n[bold]Timeline[/] predicted {number_of_ms(predicted.step_seconds)} ms"
    if measured is None:
        out.print(
            f"{words}, not recorded: the finalists' and DDP's first repeats are, where an "
            "update has one batch"
        )
    else:
        key = escape(timeline.trial or "")
        out.print(f"{words}, measured {number_of_ms(measured.step_seconds)} ms in trial {key}")
        if not measured.messages:
            out.print("torch's own DDP does not say when its messages travel.")
    if timeline.differences:
        shown = [_cells(each) for each in timeline.differences[:SHOWN_CELLS]]
        print_table(COLUMNS, shown, right=[name for name in COLUMNS if name != "operation"])
        out.print(
            "[dim]The messages that differ most: from their turn in their channel to their "
            "arrival, and when that was, from the start of forward.[/]"
        )
    if timeline.clock == "by host":
        out.print(
            "Hosts have clocks of their own: their times are aligned at each host's latest "
            "forward start."
        )


def _cells(each: "Difference") -> tuple[str, ...]:
    moments = (
        each.predicted_seconds,
        each.measured_seconds,
        each.predicted_arrived_seconds,
        each.measured_arrived_seconds,
    )
    return (
        str(each.message),
        each.operation.replace("_", "-"),
        f"{each.wire_bytes / 1e3:.1f}",
        *(f"{seconds * 1e3:.2f}" for seconds in moments),
    )


SHOWN = 12
"""Variables listed without --all."""
TUNING_ID = re.compile("[0-9a-fA-F]{4,32}")
"""An id or its beginning; a file of such a name comes first."""


def explain(
    document: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|STRATEGY|TUNING",
            help="A bundle or strategy file, or the id of a tuning (or its beginning).",
            show_default=False,
            autocompletion=complete_tuning,
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="List every variable.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the timeline, predicted and measured, for ui.perfetto.dev.",
        ),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    url: ServiceUrl = None,
    json: Json = False,
) -> None:
    """Say in words what a strategy does, and where measured and predicted differ.

    The timeline is of the tuning that found the bundle, where the database or service has it.

    Examples:

        autosync explain best.json
        autosync explain 3f2a90c1 --trace trace.json
    """
    from autosync.api.cli.connection import connected, is_missing
    from autosync.api.cli.domain_arguments import load_strategy_or_bundle
    from autosync.api.cli.tuning_lookup import find_tuning
    from autosync.bundle import Bundle
    from autosync.documents import to_data

    loaded: Strategy | Bundle
    recorded: Recorded | None = None
    if TUNING_ID.fullmatch(document) and not Path(document).exists():
        with connected(db, url) as at:
            tuning_id = find_tuning(at.client, document).id
            loaded = at.client.tunings.bundle(tuning_id)
            recorded = _recorded(at.client, loaded, tuning_id)
    else:
        loaded = load_strategy_or_bundle(Path(document))
        if isinstance(loaded, Bundle) and (url is not None or not is_missing(db)):
            with connected(db, url) as at:
                recorded = _recorded(at.client, loaded)
    if trace is not None:
        _write_trace(recorded, trace, document)
    if json:
        print_json(to_data(loaded))
        return
    if isinstance(loaded, Bundle):
        _print_strategy(loaded.strategy, every)
        _print_bundle(loaded)
    else:
        _print_strategy(loaded, every)
    if recorded is not None and isinstance(loaded, Bundle):
        print_prediction(loaded.strategy, recorded.domain, recorded.limit_seconds)
        print_timeline(recorded.timeline)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a tuning has of a bundle's strategy. trace: of its timeline, for ui.perfetto.dev.
    limit_seconds: over the space of the tuning; None before its end."""

    domain: "Domain"
    timeline: "Timeline"
    trace: dict[str, Any]
    limit_seconds: float | None


def _recorded(client: "Client", bundle: "Bundle", tuning_id: str | None = None) -> Recorded | None:
    """Of the tuning, or of the newest that recorded the bundle's strategy in its domain; None where
    there is none."""
    tunings, strategy_id = client.tunings, bundle.strategy.id
    if tuning_id is None:
        there = tunings.list(recorded=strategy_id, limit=None).items
        tuning_id = next((each.id for each in there if each.domain_id == bundle.domain_id), None)
    if tuning_id is None:
        return None
    timeline = tunings.timeline(tuning_id, strategy=strategy_id)
    trace = tunings.trace(tuning_id, strategy=strategy_id)
    result = tunings.get(tuning_id).result
    limit_seconds = None if result is None else result.limit_seconds
    return Recorded(tunings.domain(tuning_id), timeline, trace, limit_seconds)


def _write_trace(recorded: Recorded | None, trace: Path, document: str) -> None:
    import json

    if recorded is None:
        raise InvalidInput(
            f"there is no timeline of {document}.",
            thing="--trace",
            value=document,
            remedy="Give the id of a finished tuning or its bundle; name its database with --db, "
            "or its service with --url.",
        )
    write_text(trace, json.dumps(recorded.trace))
    say(f"Trace for ui.perfetto.dev: {escape(str(trace))}")


def _print_strategy(strategy: "Strategy", every: bool) -> None:
    from autosync.strategy_description import describe

    name = escape(strategy.name or "Strategy")
    out.print(f"[bold]{name}[/]: {escape(describe(strategy))}")
    if strategy.engine is not None:
        out.print(
            "The model's parameters become DTensors: docs/synchronizers/torch-engines.md says what "
            "that changes for a training script."
        )
    shown = strategy.choices if every else strategy.choices[:SHOWN]
    rows = []
    for choice in shown:
        axis, lengths = choice.partition.axis, choice.partition.lengths
        cut = "flat" if axis < 0 else f"axis {axis}"
        parts = "whole" if len(lengths) == 1 else f"{len(lengths)} parts, {cut}"
        kinds = dict.fromkeys(shard.kind.replace("_", " ") for shard in choice.shards)
        groups = sorted({shard.group for shard in choice.shards})
        span = str(groups[0]) if len(groups) == 1 else f"{groups[0]}-{groups[-1]}"
        rows.append((escape(choice.variable), parts, ", ".join(kinds), span))
    print_table(("variable", "partition", "synchronizer", "group"), rows, right=("group",))
    if len(shown) < len(strategy.choices):
        out.print(f"[dim]... and {len(strategy.choices) - len(shown)} more; --all lists them.[/]")


def _print_bundle(shipped: "Bundle") -> None:
    plan, evidence = shipped.plan, shipped.evidence
    out.print(f"\n[bold]Plan[/] {plan.id[:12]}: {_plan_words(plan)}")
    hosts = list(dict.fromkeys(shipped.hosts))
    on = escape(", ".join(hosts))
    out.print(f"[bold]For[/] {len(shipped.hosts)} ranks on {on} ({shipped.backend})")
    if evidence.step_seconds is not None:
        against = (
            f", DDP {number_of_ms(evidence.ddp_step_seconds)} ms"
            if evidence.ddp_step_seconds
            else ""
        )
        where = escape(evidence.measured_on)
        if evidence.accumulate > 1:
            where += f"; {evidence.accumulate} batches per update"
        out.print(f"[bold]Measured[/] {number_of_ms(evidence.step_seconds)} ms{against} on {where}")
    elif evidence.predicted_seconds is not None:
        out.print(f"[bold]Predicted[/] {number_of_ms(evidence.predicted_seconds)} ms, not measured")


def _plan_words(plan: "Plan") -> str:
    if plan.engine == "ddp":
        limits = plan.ddp.bucket_limits_bytes if plan.ddp else ()
        sizes = ", ".join(f"{each / MIB:.4g}" for each in limits or (plan.bucket_bytes,))
        return f"torch's own DDP with buckets of {sizes} MiB"
    if plan.sharding is not None:
        return f"torch's fully_shard over {len(plan.sharding.units)} units and the rest"
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
