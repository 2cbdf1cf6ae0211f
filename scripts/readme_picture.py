"""Draw a tuning from its database: the ranked strategies, and the best time trial by trial.

.venv/bin/python scripts/readme_picture.py sqlite:///autosync.db TUNING docs/pictures/tuning.svg
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib

from autosync.api.cli.connection import connected
from autosync.api.cli.tuning_lookup import find_tuning
from autosync.api.views.tuning_schemas import RankedStrategies, Trials, Tuning

matplotlib.use("svg")
from matplotlib import pyplot  # the backend is chosen first

SHOWN = 12
DDP_COLOR, BEST_COLOR, OTHER_COLOR = "#d1495b", "#2e8b57", "#7a9cc6"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("tuning", help="its id, or the beginning of it")
    parser.add_argument("picture", type=Path, help="an .svg or .png file")
    given = parser.parse_args()
    with connected(given.database, None) as at:
        tuning, tunings = find_tuning(at.client, given.tuning), at.client.tunings
        ranked, trials = tunings.strategies(tuning.id), tunings.trials(tuning.id)
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "autosync", "svg.fonttype": "none"})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2))
    draw_ranked(left, ranked, tuning.result.strategy_id if tuning.result else "")
    draw_convergence(right, trials)
    figure.suptitle(title(tuning), fontsize=10)
    figure.tight_layout()
    figure.savefig(given.picture, dpi=150, metadata={"Date": None})


def title(tuning: Tuning) -> str:
    """What was tuned, where, and at which scales."""
    return (
        f"{tuning.graph}, batch {tuning.batch_size} a replica, on {tuning.cluster}: emulated at "
        f"byte scale 1/{1 / tuning.byte_scale:g}, time scale {tuning.time_scale:g}; compute "
        f"{tuning.profile_source}"
    )


def draw_ranked(axes: Any, ranked: RankedStrategies, answer: str) -> None:
    """Bars: measured ms of the fastest strategies and DDP, with the spread of the iterations; the
    answer, which the interleaved repeats decide, in green."""
    measured = [row for row in ranked.items if row.step_seconds is not None]
    rows = measured[:SHOWN] + [row for row in measured[SHOWN:] if row.is_ddp]
    values = [1e3 * (row.step_seconds or 0.0) for row in rows]
    halves = [value * (row.spread or 0.0) / 2 for value, row in zip(values, rows, strict=True)]
    colors = [
        DDP_COLOR if row.is_ddp else BEST_COLOR if row.strategy_id == answer else OTHER_COLOR
        for row in rows
    ]
    places = range(len(rows))
    axes.barh(places, values, xerr=halves, color=colors, error_kw={"lw": 0.8, "capsize": 2})
    axes.set_yticks(places, [label(row.origin, row.confirmed, row.rank) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("measured ms an iteration (bars: p10 to p90)")
    axes.plot([1e3 * row.predicted_seconds for row in rows], places, "k|", ms=10, label="predicted")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def label(origin: str, confirmed: bool, rank: int) -> str:
    name = "torch's DDP" if origin == "ddp" else origin.replace("_", " ")
    return f"{name} {'(confirmed) ' if confirmed else ''}{rank}"


def draw_convergence(axes: Any, trials: Trials) -> None:
    """Each strategy's trial, and the best so far."""
    search = [trial for trial in trials.items if trial.phase == "search" and trial.step_seconds]
    seconds = [1e3 * (trial.step_seconds or 0.0) for trial in search]
    best = [min(seconds[: i + 1]) for i in range(len(seconds))]
    numbers = range(1, len(seconds) + 1)
    axes.plot(numbers, seconds, "o", color=OTHER_COLOR, ms=4, label="a strategy's trial")
    axes.step(numbers, best, where="post", color=BEST_COLOR, label="best so far")
    ddp = next((s for s, trial in zip(seconds, search, strict=True) if trial.origin == "ddp"), None)
    if ddp is not None:
        axes.axhline(ddp, color=DDP_COLOR, lw=1, ls="--", label="torch's DDP")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("trial of the search")
    axes.set_ylabel("ms an iteration")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
