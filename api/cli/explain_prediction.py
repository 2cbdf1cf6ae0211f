"""Where the predicted seconds of a strategy go, and the memory that it takes."""

from typing import TYPE_CHECKING

from autosync.api.cli.console import out, warn

if TYPE_CHECKING:
    from autosync.domain import Domain
    from autosync.simulator.explanation import Explanation
    from autosync.strategy import Strategy


def print_prediction(strategy: "Strategy", domain: "Domain") -> None:
    """What compute, updates, transfers and startups add to the iteration; peak memory a rank."""
    from autosync.extensions.placement.placement_account import placement_words
    from autosync.simulator.backends import backend_of
    from autosync.simulator.explanation import explain

    told = explain(domain, strategy)
    out.print(f"\n[bold]Predicted[/] {told}")
    out.print(f"[bold]Peak memory[/] {_memory_words(told)}")
    for words in placement_words(told.placed):
        out.print(f"[bold]Placed[/] {words}", highlight=False)
    if caveat := backend_of(domain.cluster).caveat(strategy, domain.cluster):
        warn(caveat)


def _memory_words(told: "Explanation") -> str:
    gigabytes = sorted({f"{peak / 1e9:.2f}" for peak in told.peak_memory_bytes}, key=float)
    words = f"{gigabytes[0]} GB a rank"
    if len(gigabytes) > 1:
        peaks = told.peak_memory_bytes
        words = f"{gigabytes[0]} to {gigabytes[-1]} GB a rank, most on {peaks.index(max(peaks))}"
    words += ", predicted"
    if short := told.ranks_out_of_memory:
        words += f"; more than the devices of ranks {', '.join(map(str, short))} have"
    return words
