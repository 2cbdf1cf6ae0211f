"""What a tuning found: the ranked table, the bundle, and the lines that apply it.

Reads the service's own schemas, so that the embedded command and a client of the service print
the same.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from autosync.api.cli.console import between_ms, number_of_ms, out, print_table, warn
from autosync.units import scales_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autosync.api.client.rest_client import Client
    from autosync.api.views.tuning_schemas import (
        BucketCurve,
        BucketPoint,
        RankedStrategies,
        RankedStrategy,
        Tuning,
    )

BAR_CELLS = 24
"""Of the longest bar of a bucket curve."""
LONGEST_REASON = 120
"""Characters of a failure's reason that the table shows."""


def predicted_peaks(client: "Client", tuning_id: str) -> dict[str, float]:
    """Predicted peak bytes of the rank that needs most, by the id of every measured strategy; none
    where no `fully_shard` is among them, for others need about as much as each other."""
    measured = [each.strategy for each in client.tunings.measured(tuning_id).trials]
    if all(strategy.engine is None for strategy in measured):
        return {}
    from autosync.simulator.memory.memory_check import most_peak_bytes  # loads numba

    peaks = most_peak_bytes(client.tunings.domain(tuning_id), measured)
    return {strategy.id: peak for strategy, peak in zip(measured, peaks, strict=True)}


def print_results(
    tuning: "Tuning",
    ranked: "RankedStrategies",
    measured_on: str,
    top: int = 12,
    peaks: "Mapping[str, float] | None" = None,
    curve: "BucketCurve | None" = None,
) -> None:
    """The ranked table, or DDP's bucket sizes, and what it means, with the scales it was measured
    at. peaks: as of `predicted_peaks`; without them the table tells no memory. curve: of the
    tuning, where its space is `buckets`."""
    if curve is not None and curve.items:
        print_curve(curve, tuning.result.strategy_id if tuning.result is not None else "")
    else:
        _print_ranked(tuning, ranked, top, peaks)
    print_scales(measured_on, tuning.byte_scale, tuning.time_scale)
    if tuning.profile_source == "estimated":
        out.print("Compute times are an estimate from the device's data sheet, not measured.")
    if tuning.result is not None:
        _print_verdict(tuning)


def _print_ranked(
    tuning: "Tuning", ranked: "RankedStrategies", top: int, peaks: "Mapping[str, float] | None"
) -> None:
    others = ranked.items[top:]
    shown = ranked.items[:top] + [row for row in others if row.is_ddp or row.is_baseline]
    winner = tuning.result.strategy_id if tuning.result is not None else ""
    over = f"speed-up over {_compared_with(tuning, ranked)}"
    columns = ["", "id", "strategy", "predicted ms", "measured ms", "spread", over]
    rows = [[_place(row, winner), row.strategy_id[:8], *_cells(row)] for row in shown]
    if peaks:
        columns.append("GB a rank")
        for cells, row in zip(rows, shown, strict=True):
            known = peaks.get(row.strategy_id)
            cells.append("" if known is None else f"{known / 1e9:.2f}")
    print_table(columns, rows, right=("", *columns[3:]))
    _explain_intervals(shown)
    if len(ranked.items) > len(shown):
        out.print(f"[dim]{len(ranked.items)} strategies tried; --top lists more.[/]")


def _compared_with(tuning: "Tuning", ranked: "RankedStrategies") -> str:
    """What speed-ups are over, in a word: of the answer, before there is one of the ranking."""
    if tuning.result is not None:
        return tuning.result.compared_with
    base = next((row for row in ranked.items if row.is_baseline), None)
    return "DDP" if base is None or base.is_ddp else base.origin


def print_curve(curve: "BucketCurve", answer: str = "") -> None:
    """DDP by the sizes of its buckets, with a bar for what each measured beyond the fastest.
    answer: the id of the tuning's answer, if there is one."""
    from autosync.api.views.bucket_curve import size_words

    times = [each.step_seconds for each in curve.items if each.step_seconds is not None]
    rows = []
    for each in curve.items:
        bar = "[red]failed[/]" if each.error else ""
        if each.step_seconds is not None:
            beyond = (each.step_seconds - min(times)) / max(max(times) - min(times), 1e-12)
            bar = "▇" * (1 + round(beyond * (BAR_CELLS - 1)))
        rows.append(
            (
                "[green]>[/]" if each.strategy_id == answer else "",
                each.strategy_id[:8],
                size_words(each),
                str(each.buckets),
                _predicted(each),
                number_of_ms(each.step_seconds),
                f"{each.spread:.0%}" if each.spread is not None else "",
                bar,
            )
        )
    columns = ("", "id", "bucket_cap_mb", "buckets", "predicted ms", "measured ms", "spread")
    print_table((*columns, "beyond the fastest"), rows, right=columns[3:])
    _explain_intervals(curve.items)
    print_wrapping(curve, answer)


def print_wrapping(curve: "BucketCurve", answer: str) -> None:
    """The answer, or the fastest so far, as arguments of DDP; where it is a list of sizes, the
    fastest single size, too."""
    measured = [each for each in curve.items if each.step_seconds is not None]
    if not measured:
        return
    fastest = min(measured, key=lambda each: each.step_seconds or 0.0)
    chosen = next((each for each in measured if each.strategy_id == answer), fastest)
    out.print("\nIn a script without AutoSync:\n")
    out.print(f"    [cyan]model = {escape(chosen.code)}[/]", soft_wrap=True, highlight=False)
    sizes = [each for each in measured if each.bucket_cap_mb is not None]
    if chosen.bucket_cap_mb_list and sizes:
        single = min(sizes, key=lambda each: each.step_seconds or 0.0)
        out.print(
            f"\nA list takes torch 2.13. The fastest single size measured "
            f"{number_of_ms(single.step_seconds)} ms:\n"
        )
        out.print(f"    [cyan]model = {escape(single.code)}[/]", soft_wrap=True, highlight=False)


def _place(row: "RankedStrategy", winner: str) -> str:
    """The rank; an arrow marks the answer, which repeats decide and not the rank."""
    return f"[green]> {row.rank}[/]" if row.strategy_id == winner else str(row.rank)


def _cells(row: "RankedStrategy") -> tuple[str, ...]:
    name = escape(row.words)
    if row.is_ddp:
        name = f"[bold]{name}[/]"
    predicted = _predicted(row)
    if row.error:
        name += f"\n[red]{escape(row.error[:LONGEST_REASON])}[/]"
    if row.step_seconds is None:
        return name, predicted, "[red]failed[/]" if row.error else "-", "", ""
    spread = f"{row.spread:.0%}" if row.spread is not None else ""
    return name, predicted, number_of_ms(row.step_seconds), spread, _speedup_words(row)


def _predicted(row: "RankedStrategy | BucketPoint") -> str:
    """With its interval below, as on the dashboard, where that is known."""
    words = number_of_ms(row.predicted_seconds)
    if row.low_seconds is None or row.high_seconds is None:
        return words
    return f"{words}\n[dim]{between_ms(row.low_seconds, row.high_seconds)}[/]"


def _explain_intervals(rows: "Sequence[RankedStrategy | BucketPoint]") -> None:
    if any(row.low_seconds is not None for row in rows):
        out.print("[dim]Below a prediction: where nine of ten measurements are expected.[/]")


def _speedup_words(row: "RankedStrategy") -> str:
    if row.is_baseline and row.step_seconds is not None:
        return "1.00 (baseline)"
    if not row.confirmed or row.speedup is None:
        return "[dim]not confirmed[/]"
    words = f"{row.speedup:.2f} ({row.speedup_low:.2f} to {row.speedup_high:.2f})"
    return words if row.settled else f"[dim]{words}, not settled[/]"


def print_scales(measured_on: str, byte_scale: float, time_scale: float) -> None:
    """Where it was measured, at which scales, and what of that is not as on the cluster."""
    out.print(f"\nMeasured on: {escape(measured_on)}")
    out.print(f"{scale_words(byte_scale, time_scale)}. Milliseconds are the cluster's own.")
    from autosync.api.views.verdict import FEW_CORES, SHARED_BY_MPS, SHARED_IN_TURNS
    from autosync.trials.request_names import GPU_BY_MPS, GPU_IN_TURNS, SHORT_OF_CORES, UNSHAPED

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


def warn_gloo() -> None:
    warn(
        "trials send from host memory, by gloo, and the cluster's jobs by NCCL: an answer may rank "
        "otherwise there. autosync.tune measures strategies in the job itself."
    )


def _print_verdict(tuning: "Tuning") -> None:
    from autosync.api.views.verdict import NOT_SETTLED, headline

    said = headline(tuning, None, "")
    out.print(f"\n[bold]{escape(said.sentence)}.[/] {escape(said.certainty)}")
    if tuning.result is not None and not tuning.result.settled:
        warn(f"[bold]{NOT_SETTLED.label}[/]: {NOT_SETTLED.reason}")


def print_script_lines(path: Path, text: str) -> None:
    """The bundle that was written, and how a training script applies it. text: of the bundle."""
    from autosync.bundle import read_bundle
    from autosync.strategy_description import script_lines

    lines = script_lines(read_bundle(text, str(path)).strategy, str(path))
    count = "Two" if len(lines) == 2 else "These"
    out.print(f"\nBundle: [bold]{escape(str(path))}[/]. {count} lines apply it, under torchrun:\n")
    for line in lines:
        out.print(f"    [cyan]{escape(line)}[/]")
    out.print()


def curve_of(client: "Client", tuning: "Tuning") -> "BucketCurve | None":
    """DDP's bucket sizes, of a tuning of these; None of others."""
    return client.tunings.bucket_curve(tuning.id) if tuning.space == "buckets" else None


def results_data(
    tuning: "Tuning",
    ranked: "RankedStrategies",
    measured_on: str,
    peaks: "Mapping[str, float] | None" = None,
    curve: "BucketCurve | None" = None,
) -> Any:
    """The same as plain JSON data."""
    items = ranked.model_dump(mode="json")["items"]
    if peaks:
        for item in items:
            known = peaks.get(item["strategy_id"])
            item["predicted_peak_bytes"] = None if known is None else int(known)
    buckets = {"bucket_curve": curve.model_dump(mode="json")["items"]} if curve else {}
    return {
        "tuning": tuning.model_dump(mode="json"),
        "measured_on": measured_on,
        "strategies": items,
        **buckets,
    }
