"""The timeline that a tuning recorded of a strategy, against the prediction."""

from typing import TYPE_CHECKING

from rich.markup import escape

from autosync.api.cli.console import milliseconds, out, print_table

if TYPE_CHECKING:
    from autosync.api.views.timeline_views import RecordedTimelines
    from autosync.simulator.timeline.trace_comparison import Difference

SHOWN = 10
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


def print_timeline(recorded: "RecordedTimelines") -> None:
    """Both periods, and where measured and predicted differ most."""
    from autosync.api.views.timeline_views import compared

    both = compared(recorded)
    predicted, measured = both.predicted, both.measured
    words = f"\n[bold]Timeline[/] predicted {milliseconds(predicted.step_seconds)} ms"
    if measured is None:
        out.print(f"{words}, not recorded: the finalists' and DDP's first repeats are")
    else:
        key = escape(recorded.key or "")
        out.print(f"{words}, measured {milliseconds(measured.step_seconds)} ms in trial {key}")
        if not measured.messages:
            out.print("torch's own DDP does not say when its messages travel.")
    if both.differences:
        shown = [_cells(each) for each in both.differences[:SHOWN]]
        print_table(COLUMNS, shown, right=[name for name in COLUMNS if name != "operation"])
        out.print(
            "[dim]The messages that differ most: from their turn in their channel to their "
            "arrival, and when that was, from the start of forward.[/]"
        )
    if recorded.timeline is not None and recorded.timeline.clock == "by host":
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
