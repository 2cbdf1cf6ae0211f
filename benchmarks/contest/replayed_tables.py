"""What the replayed contest found: tables as Markdown, figures as SVG."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contest.replayed_contest import BUDGETS, ReplayedSearch
from benchmarks.contest.replayed_searchers import ABLATIONS, LEARNED, RANDOM, UNLIKE

F64 = NDArray[np.float64]

COUNTS = (8, 12, 20, 40, 60)
MOST = BUDGETS[-1]
USUAL = "ensemble, transferred"
"""What `autosync tune` ranks with."""
DRAWN = {
    "8.2": (UNLIKE, "timeline", LEARNED),
    "8.3": (RANDOM, "timeline", "process and trees", LEARNED, "lstm, transferred"),
}
"""Ablations in each figure, as far as they were played."""


def names_of(searches: Sequence[ReplayedSearch], ablations: Sequence[str] = ()) -> list[str]:
    """The ablations that were played, in the order of the contest."""
    played = {each.ablation for each in searches}
    order = ablations or [each.name for each in ABLATIONS]
    return [name for name in order if name in played]


def domains_of(searches: Sequence[ReplayedSearch]) -> list[str]:
    return sorted({each.domain for each in searches})


def chosen(
    searches: Sequence[ReplayedSearch],
    domain: str,
    ablation: str,
    designs: bool = False,
    budget: int = MOST,
) -> list[ReplayedSearch]:
    """One a seed."""
    asked = (domain, ablation, designs, budget)
    return [e for e in searches if (e.domain, e.ablation, e.designs, e.budget) == asked]


def regret(search: ReplayedSearch, trials: int) -> float:
    """By how much the answer after so many trials is slower than the fastest that was there."""
    return answer_seconds(search, trials) / search.reachable_seconds - 1.0


def behind_pool(search: ReplayedSearch, trials: int) -> float:
    """The same beside the fastest of the whole pool."""
    return answer_seconds(search, trials) / search.fastest_seconds - 1.0


def answer_seconds(search: ReplayedSearch, trials: int) -> float:
    return search.best_seconds[min(trials, len(search.best_seconds)) - 1]


def hit_rate(search: ReplayedSearch, trials: int = MOST) -> float:
    """Share of the tried strategies that beat the better baseline."""
    tried = np.array(search.label_seconds[:trials])
    return float(np.mean(tried < search.baseline_seconds))


def mean_of(
    searches: Sequence[ReplayedSearch],
    domains: Sequence[str],
    ablation: str,
    figure: Callable[[ReplayedSearch], float],
    designs: bool = False,
    budget: int = MOST,
) -> float:
    """The mean over domains of the means over seeds; NaN where a domain was not played."""
    rows = [chosen(searches, domain, ablation, designs, budget) for domain in domains]
    return float(np.mean([np.mean([figure(e) for e in row]) if row else np.nan for row in rows]))


def statistics_table(searches: Sequence[ReplayedSearch], domain: str) -> str:
    """Table 8.2's form: the seconds of all strategies that each search tried, seeds together."""
    names = names_of([e for e in searches if e.domain == domain])
    rows = {"mean (ms)": np.mean, "std (ms)": np.std, "min (ms)": np.min, "max (ms)": np.max}
    lines = [f"| search | {' | '.join(rows)} | hit rate |", f"|---{'|---' * len(rows)}|---|"]
    for name in names:
        found = chosen(searches, domain, name)
        if not found:
            continue
        tried = np.array([e.label_seconds for e in found]) * 1e3
        cells = [f"{float(row(tried)):.1f}" for row in rows.values()]  # type: ignore[operator]
        hits = np.mean([hit_rate(e) for e in found])
        lines.append(f"| {name} | {' | '.join(cells)} | {hits:.0%} |")
    return "\n".join(lines)


def regret_table(searches: Sequence[ReplayedSearch]) -> str:
    """Means over domains and seeds, without hand-designed strategies; a row only where all domains
    were played."""
    domains = domains_of(searches)
    lines = [
        f"| search | {' | '.join(f'{n} trials' for n in COUNTS)} | worst domain at 12 | hit rate |",
        f"|---{'|---' * len(COUNTS)}|---|---|",
    ]
    for name in names_of(searches):
        cells = [
            mean_of(searches, domains, name, lambda e, n=n: regret(e, n))  # type: ignore[misc]
            for n in COUNTS
        ]
        if np.isnan(cells).any():
            continue
        worst = max(
            float(np.mean([regret(e, 12) for e in chosen(searches, domain, name)]))
            for domain in domains
        )
        hits = mean_of(searches, domains, name, hit_rate)
        shown = " | ".join(f"{cell:.2%}" for cell in cells)
        lines.append(f"| {name} | {shown} | {worst:.2%} | {hits:.0%} |")
    return "\n".join(lines)


def designs_table(searches: Sequence[ReplayedSearch]) -> str:
    """At the end of tunings of each budget: with hand-designed strategies, and without."""
    domains = domains_of(searches)
    heads = [f"{budget} trials {kind}" for budget in BUDGETS for kind in ("with", "without")]
    lines = [f"| search | {' | '.join(heads)} |", f"|---{'|---' * len(heads)}|"]
    for name in names_of(searches):
        cells = []
        for budget in BUDGETS:
            final = lambda e, n=budget: behind_pool(e, n)  # noqa: E731
            cells.append(mean_of(searches, domains, name, final, True, budget))
            cells.append(mean_of(searches, domains, name, final))
        if not np.isnan(cells).any():
            lines.append(f"| {name} | {' | '.join(f'{cell:.2%}' for cell in cells)} |")
    return "\n".join(lines)


def without_designs_table(
    searches: Sequence[ReplayedSearch], pools: Mapping[str, tuple[int, float]]
) -> str:
    """A line a domain: its pool, and the answer of a search that had no hand-designed strategy
    beside the fastest design; the mean over seeds.

    pools: of each domain, how many strategies, and the seconds of its fastest design.
    """
    names = [name for name in (USUAL, LEARNED) if name in names_of(searches)]
    lines = [
        "| domain | strategies | fastest design, ms | "
        f"{' | '.join(f'{name}, without designs, ms' for name in names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for domain in domains_of(searches):
        strategies, design_seconds = pools[domain]
        cells = []
        for name in names:
            found = [answer_seconds(e, MOST) for e in chosen(searches, domain, name)]
            cells.append(f"{np.mean(found) * 1e3:.1f}" if found else "–")
        shown = f"| {domain} | {strategies} | {design_seconds * 1e3:.1f}"
        lines.append(f"{shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def unfinished(searches: Sequence[ReplayedSearch]) -> str:
    """Which ablations were not played, or not in all domains."""
    domains = domains_of(searches)
    missing = []
    for ablation in ABLATIONS:
        played = [domain for domain in domains if chosen(searches, domain, ablation.name)]
        if len(played) < len(domains):
            missing.append(f"{ablation.name} ({len(played)} of {len(domains)} domains)")
    return ", ".join(missing)


def draw_improvement(searches: Sequence[ReplayedSearch], file: Path) -> None:
    """Figure 8.2: the best found over the baseline (solid, left) and the hit rate (dotted, right)
    by trials; means over the seeds."""

    def draw(axis: Any, domain: str) -> None:
        right = axis.twinx()
        right.set_ylim(0, 105)
        right.tick_params(labelsize=7)
        for name in names_of(searches, DRAWN["8.2"]):
            found = chosen(searches, domain, name)
            trials = np.arange(1, 1 + max((len(e.label_seconds) for e in found), default=0))
            gains = [e.baseline_seconds / np.array(e.best_seconds) for e in found]
            (line,) = axis.step(trials, np.mean(gains, axis=0), where="post", label=name)
            hits = [[100 * hit_rate(e, int(n)) for n in trials] for e in found]
            right.plot(trials, np.mean(hits, axis=0), ":", color=line.get_color(), linewidth=1)
        axis.axhline(1.0, color="#94a3b8", linewidth=0.8)

    _panels(domains_of(searches), draw, "times the better baseline; dotted: hit rate, %", file)


def draw_best_so_far(searches: Sequence[ReplayedSearch], file: Path) -> None:
    """Figure 8.3: the best so far over the fastest that was there, by trials; means over seeds."""

    def draw(axis: Any, domain: str) -> None:
        for name in names_of(searches, DRAWN["8.3"]):
            found = chosen(searches, domain, name)
            if found:
                slower = [np.array(e.best_seconds) / e.reachable_seconds for e in found]
                trials = np.arange(1, 1 + len(slower[0]))
                axis.step(trials, np.mean(slower, axis=0), where="post", label=name)
        axis.set_ylim(0.995, 1.25)

    _panels(domains_of(searches), draw, "over the fastest that could be tried", file)


def _panels(
    domains: Sequence[str], draw: Callable[[Any, str], None], label: str, file: Path
) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = file.stem
    columns = 4
    rows = -(-len(domains) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(12.5, 2.9 * rows), layout="constrained", squeeze=False
    )
    for axis, domain in zip(axes.flat, domains, strict=False):
        draw(axis, domain)
        axis.set_title(domain, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(domains) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    figure.supxlabel("trials", fontsize=9)
    figure.supylabel(label, fontsize=9)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
