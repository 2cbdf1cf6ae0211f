"""What a tuning found: the ranked table, the bundle, and the two lines that apply it.

Reads the service's own schemas, so that the embedded command and a client of the service print
the same.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from autosync.api.cli.console import number_of_ms, out, print_table, warn
from autosync.units import scales_in_words

if TYPE_CHECKING:
    from autosync.api.views.tuning_schemas import RankedStrategies, RankedStrategy, Tuning

LONGEST_REASON = 120
"""Characters of a failure's reason that the table shows."""


def print_results(
    tuning: "Tuning", ranked: "RankedStrategies", measured_on: str, top: int = 12
) -> None:
    """The ranked table and what it means, with the scales it was measured at."""
    others = ranked.items[top:]
    shown = ranked.items[:top] + [row for row in others if row.is_ddp or row.is_baseline]
    winner = tuning.result.strategy_id if tuning.result is not None else ""
    over = f"speed-up over {tuning.result.compared_with if tuning.result else 'DDP'}"
    print_table(
        ("", "id", "strategy", "predicted ms", "measured ms", "spread", over),
        [(_place(row, winner), row.strategy_id[:8], *_cells(row)) for row in shown],
        right=("", "predicted ms", "measured ms", "spread", over),
    )
    if len(ranked.items) > len(shown):
        out.print(f"[dim]{len(ranked.items)} strategies tried; --top lists more.[/]")
    print_scales(measured_on, tuning.byte_scale, tuning.time_scale)
    if tuning.profile_source == "estimated":
        out.print("Compute times are an estimate from the device's data sheet, not measured.")
    if tuning.result is not None:
        _print_verdict(tuning)


def _place(row: "RankedStrategy", winner: str) -> str:
    """The rank; an arrow marks the answer, which repeats decide and not the rank."""
    return f"[green]> {row.rank}[/]" if row.strategy_id == winner else str(row.rank)


def _cells(row: "RankedStrategy") -> tuple[str, ...]:
    name = escape(row.words)
    if row.is_ddp:
        name = f"[bold]{name}[/]"
    predicted = number_of_ms(row.predicted_seconds)
    if row.error:
        name += f"\n[red]{escape(row.error[:LONGEST_REASON])}[/]"
    if row.step_seconds is None:
        return name, predicted, "[red]failed[/]" if row.error else "-", "", ""
    spread = f"{row.spread:.0%}" if row.spread is not None else ""
    return name, predicted, number_of_ms(row.step_seconds), spread, _speedup_words(row)


def _speedup_words(row: "RankedStrategy") -> str:
    if row.is_baseline and row.step_seconds is not None:
        return "1.00 (baseline)"
    if not row.confirmed or row.speedup is None:
        return "[dim]not confirmed[/]"
    from autosync.api.views.tuning_schemas import is_settled

    words = f"{row.speedup:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
    return words if is_settled(row.spread) else f"[dim]{words}, not settled[/]"


def print_scales(measured_on: str, byte_scale: float, time_scale: float) -> None:
    """Where it was measured, at which scales, and what of that is not as on the cluster."""
    out.print(f"\nMeasured on: {escape(measured_on)}")
    out.print(f"{scale_words(byte_scale, time_scale)}. Milliseconds are the cluster's own.")
    from autosync.api.views.verdict import FEW_CORES, SHARED_BY_MPS, SHARED_IN_TURNS, UNSHAPED
    from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS, SHORT_OF_CORES

    if UNSHAPED in measured_on:
        warn_unshaped()
    if GPU_IN_TURNS in measured_on:
        warn(f"[bold]{SHARED_IN_TURNS.label}[/]: {SHARED_IN_TURNS.reason}")
    if GPU_BY_MPS in measured_on:
        out.print(f"[dim]{SHARED_BY_MPS.reason}[/]")
    if SHORT_OF_CORES in measured_on:
        out.print(f"[dim]{FEW_CORES.reason}[/]")


def scale_words(byte_scale: float, time_scale: float) -> str:
    """Both scales in words, e.g. `Trials: 1/16 of the bytes, 2 times slower`."""
    return f"Trials: {scales_in_words(byte_scale, time_scale) or 'all bytes, at full speed'}"


def warn_unshaped() -> None:
    warn(
        "[bold]links are not shaped[/]: messages run at this machine's loopback speed, not at the "
        "cluster's, so times and ranking do not stand for the cluster. The testbed shapes them "
        "(--launcher testbed); `autosync doctor` says whether this machine can have it, or what it "
        "lacks."
    )


def _print_verdict(tuning: "Tuning") -> None:
    from autosync.api.views.verdict import NOT_SETTLED, headline

    said = headline(tuning, None, "")
    out.print(f"\n[bold]{escape(said.sentence)}.[/] {escape(said.certainty)}")
    if tuning.result is not None and not tuning.result.settled:
        warn(f"[bold]{NOT_SETTLED.label}[/]: {NOT_SETTLED.reason}")


def print_two_lines(path: Path) -> None:
    """The bundle that was written, and how a training script applies it."""
    out.print(f"\nBundle: [bold]{escape(str(path))}[/]. Two lines apply it, under torchrun:\n")
    out.print("    [cyan]import autosync[/]")
    out.print(
        f"    [cyan]model, optimizer = autosync.distribute(model, optimizer, "
        f'"{escape(str(path))}")[/]\n'
    )


def results_data(tuning: "Tuning", ranked: "RankedStrategies", measured_on: str) -> Any:
    """The same as plain JSON data."""
    return {
        "tuning": tuning.model_dump(mode="json"),
        "measured_on": measured_on,
        "strategies": ranked.model_dump(mode="json")["items"],
    }
