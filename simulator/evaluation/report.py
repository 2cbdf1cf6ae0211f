"""The tables as Markdown, the curves as pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autosync.errors import NotSupported
from autosync.simulator.evaluation.evaluation_tables import EvaluationRow
from autosync.simulator.evaluation.metrics import RankingScores, mean_scores

F64 = NDArray[np.float64]

MEASURES: dict[str, str] = {
    "accuracy": "pairs ranked rightly",
    "beyond_noise": "pairs further apart than twice the noise",
    "fast_quarter": "pairs within the fastest quarter",
    "fast_beyond_noise": "pairs within the fastest quarter beyond twice the noise",
    "kendall": "Kendall's tau",
    "regret": "how much slower the predicted best is than the best",
    "error": "median relative error of the seconds",
}


def table_of(rows: Sequence[EvaluationRow], measure: str, by: str = "simulator") -> str:
    """One Markdown table: a line a domain and a column a simulator (or setting), and the mean.

    measure: a field of `RankingScores`. by: the field of `EvaluationRow` that names the columns.
    """
    columns = list(dict.fromkeys(getattr(row, by) for row in rows))
    domains = list(dict.fromkeys(row.domain for row in rows))
    cells = {(row.domain, getattr(row, by)): row.scores for row in rows}
    lines = [
        f"| {MEASURES[measure]} | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for domain in domains:
        found = [cells.get((domain, column)) for column in columns]
        lines.append(f"| {domain} | {' | '.join(_cell(scores, measure) for scores in found)} |")
    if len(domains) > 1:
        means = [
            mean_scores([cells[d, column] for d in domains if (d, column) in cells])
            for column in columns
        ]
        lines.append(f"| mean | {' | '.join(_cell(scores, measure) for scores in means)} |")
    return "\n".join(lines)


def summary_table(rows: Sequence[EvaluationRow]) -> str:
    """One Markdown table: a line a simulator; over the domains, how it ranks pairs that noise
    cannot turn round, on average and where it does worst, and what its first choice costs."""
    lines = [
        "| simulator | beyond noise, mean | worst domain | "
        "fastest quarter beyond noise, mean | regret, mean |",
        "|---|---|---|---|---|",
    ]
    for simulator in dict.fromkeys(row.simulator for row in rows):
        scores = [row.scores for row in rows if row.simulator == simulator]
        mean = mean_scores(scores)
        judged = [each.beyond_noise for each in scores if not np.isnan(each.beyond_noise)]
        worst = min(judged, default=np.nan)
        cells = (mean.beyond_noise, worst, mean.fast_beyond_noise, mean.regret)
        lines.append(f"| {simulator} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return "\n".join(lines)


def transfer_table(rows: Sequence[EvaluationRow], measure: str) -> str:
    """One Markdown table: a line a target and setting, a column a simulator."""
    named = [
        EvaluationRow(f"{row.domain} ({row.setting})", row.simulator, "", row.trials, row.scores)
        for row in rows
    ]
    return table_of(named, measure)


def _cell(scores: RankingScores | None, measure: str) -> str:
    value = float("nan") if scores is None else float(getattr(scores, measure))
    return "–" if np.isnan(value) else f"{value:.3f}"


def draw_curves(rows: Sequence[EvaluationRow], file: Path, measure: str = "beyond_noise") -> None:
    """Learning curves: a panel a domain, a line a simulator.

    Raises:
        NotSupported: matplotlib is not installed.
    """
    plt = _pyplot()
    domains = list(dict.fromkeys(row.domain for row in rows))
    figure, axes = plt.subplots(
        1, len(domains), figsize=(4.5 * len(domains), 3.4), squeeze=False, sharey=True
    )
    for axis, domain in zip(axes[0], domains, strict=True):
        of_domain = [row for row in rows if row.domain == domain]
        for simulator in dict.fromkeys(row.simulator for row in of_domain):
            points = [row for row in of_domain if row.simulator == simulator]
            values = [getattr(row.scores, measure) for row in points]
            axis.plot([row.trials for row in points], values, marker="o", label=simulator)
        axis.set(title=domain, xlabel="trials", ylabel=MEASURES[measure])
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)


def draw_searches(curves: dict[str, F64], title: str, file: Path) -> None:
    """Figure 8.3's form: fastest found over fastest of all, trial by trial.

    Raises:
        NotSupported: matplotlib is not installed.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(5.5, 3.6))
    for name, values in curves.items():
        axis.step(np.arange(1, len(values) + 1), values, where="post", label=name)
    axis.set(title=title, xlabel="trials", ylabel="fastest found / fastest measured")
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise NotSupported(
            "pictures need matplotlib.",
            thing="matplotlib",
            remedy="Install autosync[pictures].",
        ) from error
    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot
