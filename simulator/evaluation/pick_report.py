"""The tables of picks as Markdown."""

from collections.abc import Callable, Sequence

import numpy as np

from autosync.simulator.evaluation.pick_tables import (
    TOP,
    ChosenRow,
    PickRow,
    mean_pick_scores,
)

PICK_MEASURES: dict[str, str] = {
    "kendall": "Kendall's tau over the picks",
    "chosen_kendall": "Kendall's tau over the picks, those at random left out",
    "excess": "median excess of measured over predicted",
    "top_excess": f"the same, of the {TOP} predicted fastest",
    "regret": "predicted fastest over the fastest of all measured",
    "top_regret": f"fastest of the {TOP} predicted fastest over the fastest of all measured",
}
"""By the field of `PickScores`."""


def pick_summary(rows: Sequence[PickRow]) -> str:
    """A line a simulator and its trials; means over the domains, of the excess its size, and tau
    where it is least."""
    lines = [
        "| simulator | trials | tau, mean | tau, worst domain | without random picks | "
        "size of the excess, mean | of the "
        f"{TOP} predicted fastest | regret, mean | of the best of {TOP} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for simulator, trials in _columns(rows):
        scores = [r.scores for r in rows if (r.simulator, r.trials) == (simulator, trials)]
        mean = mean_pick_scores(scores)
        worst = min(each.kendall for each in scores)
        sizes = [
            float(np.mean([abs(getattr(each, name)) for each in scores]))
            for name in ("excess", "top_excess")
        ]
        percents = (*sizes, mean.regret, mean.top_regret)
        taus = (mean.kendall, worst, mean.chosen_kendall)
        cells = [*(f"{tau:.2f}" for tau in taus), *map(_percent, percents)]
        lines.append(f"| {simulator} | {trials} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pick_table(rows: Sequence[PickRow], measure: str) -> str:
    """A line a domain, a column a simulator and its trials."""
    columns = _columns(rows)
    names = [f"{simulator}, {trials}" for simulator, trials in columns]
    cells = {(r.domain, r.simulator, r.trials): r.scores for r in rows}
    shown: Callable[[float], str] = (
        (lambda v: f"{v:.2f}") if measure.endswith("kendall") else _percent
    )
    lines = [f"| {PICK_MEASURES[measure]} | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for domain in dict.fromkeys(row.domain for row in rows):
        found = [cells.get((domain, *column)) for column in columns]
        values = ["–" if each is None else shown(getattr(each, measure)) for each in found]
        lines.append(f"| {domain} | {' | '.join(values)} |")
    return "\n".join(lines)


def chosen_table(rows: Sequence[ChosenRow]) -> str:
    """A line a domain and chooser."""
    lines = [
        "| domain | chosen by | picks | median excess over what it predicted | "
        "its fastest over the fastest of all measured |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.domain} | {r.chooser} | {r.picks} | {_percent(r.excess)} | {_percent(r.regret)} |"
        for r in rows
    ]
    return "\n".join(lines)


def _columns(rows: Sequence[PickRow]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.simulator, row.trials) for row in rows))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
