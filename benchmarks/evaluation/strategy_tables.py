"""Held-out strategies, domains without a trial, learning curves (thesis, tables 8.1 and 8.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LearnedModel
from autosync.simulator.learned.training import transferred
from benchmarks.evaluation.evaluated_domain import PERFECT, EvaluatedDomain, MakeModel
from benchmarks.evaluation.ranking_scores import (
    RankingScores,
    judge,
    known_and_test,
    mean_scores,
    perfect_scores,
)

F64 = NDArray[np.float64]

SEEDS = (0, 1, 2)
COUNTS = (0, 5, 10, 20, 40, 80, 150)
"""Trials of learning curves."""


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """line, simulator: where the cell stands; the line is a domain, with the setting of a transfer.
    trials: learned from. scores: means over the seeds."""

    line: str
    simulator: str
    trials: int
    scores: RankingScores


def held_out_strategies(
    subject: EvaluatedDomain, models: dict[str, MakeModel], seeds: Sequence[int] = SEEDS
) -> list[EvaluationRow]:
    """Table 8.1: a domain's held-out strategies, by each simulator and the perfect predictor."""
    found: dict[str, list[RankingScores]] = {}
    counts = dict.fromkeys(("analytic", "timeline", PERFECT), 0)
    for seed in seeds:
        known, test = known_and_test(len(subject.measured), seed)
        predicted = {"analytic": subject.analytic_seconds, "timeline": subject.timeline_seconds}
        for name, make in models.items():
            predicted[name], counts[name] = _taught(subject, make(seed), known), len(known)
        for name, seconds in predicted.items():
            found.setdefault(name, []).append(_judge(subject, seconds, test))
        labels = subject.trials.step_seconds[test]
        if (perfect := perfect_scores(labels, subject.measured.noise)) is not None:
            found.setdefault(PERFECT, []).append(perfect)
    return [
        EvaluationRow(subject.name, name, counts[name], mean_scores(scores))
        for name, scores in found.items()
    ]


def without_a_trial(
    target: EvaluatedDomain,
    subjects: Sequence[EvaluatedDomain],
    models: dict[str, MakeModel],
    seed: int = 0,
) -> list[EvaluationRow]:
    """Table 8.4: one domain ranked without a trial of it, by simulators that learned from the
    domains of other models (`leave model out`), of other clusters, and from all others."""
    everything = np.arange(len(target.measured))
    line = f"{target.name} (no trials)"
    rows = [EvaluationRow(line, "timeline", 0, _judge(target, target.timeline_seconds, everything))]
    perfect = perfect_scores(target.trials.step_seconds, target.measured.noise)
    if perfect is not None:
        rows.append(EvaluationRow(line, PERFECT, 0, perfect))
    for setting, sources in transfer_sources(target, subjects).items():
        known = [source.trials for source in sources]
        count = sum(len(source.measured) for source in sources)
        for name, make in models.items():
            simulator = transferred(make(seed), known, target.measured.domain)
            scores = _judge(target, target.predicted_by(simulator), everything)
            rows.append(EvaluationRow(f"{target.name} ({setting})", name, count, scores))
    return rows


def transfer_sources(
    target: EvaluatedDomain, subjects: Sequence[EvaluatedDomain]
) -> dict[str, list[EvaluatedDomain]]:
    """The sources of each setting that has any. A graph is told by its name, a cluster too."""
    domain, others = target.measured.domain, target.others(subjects)
    settings = {
        "leave domain out": others,
        "leave model out": [s for s in others if s.measured.domain.graph.name != domain.graph.name],
        "leave cluster out": [
            s for s in others if s.measured.domain.cluster.name != domain.cluster.name
        ],
    }
    return {setting: sources for setting, sources in settings.items() if sources}


def learning_curve(
    subject: EvaluatedDomain,
    models: dict[str, MakeModel],
    counts: Sequence[int] = COUNTS,
    seeds: Sequence[int] = SEEDS,
) -> list[EvaluationRow]:
    """Accuracy on one held-out set as the trials grow; every count's trials contain those before.

    Counts beyond what is left for training are left out.
    """
    rows = []
    for name, make in models.items():
        for count in counts:
            scores = []
            for seed in seeds:
                known, test = known_and_test(len(subject.measured), seed)
                if count > len(known):
                    break
                seconds = _taught(subject, make(seed), known[:count])
                scores.append(_judge(subject, seconds, test))
            if scores:
                rows.append(EvaluationRow(subject.name, name, count, mean_scores(scores)))
    return rows


def _taught(subject: EvaluatedDomain, model: LearnedModel, known: NDArray[np.int64]) -> F64:
    """Predictions of all strategies by a model that learned from `known`, which may be none."""
    simulator = LearnedSimulator(model)
    if len(known):
        simulator.refit_features(subject.trials.take(known))
    return subject.predicted_by(simulator)


def _judge(subject: EvaluatedDomain, predicted: F64, indices: NDArray[np.int64]) -> RankingScores:
    labels = subject.trials.step_seconds[indices]
    return judge(predicted[indices], labels, subject.measured.noise)


MEASURES: dict[str, str] = {
    "accuracy": "pairs ranked rightly",
    "beyond_noise": "pairs further apart than twice the noise",
    "fast_quarter": "pairs within the fastest quarter",
    "fast_beyond_noise": "pairs within the fastest quarter beyond twice the noise",
    "kendall": "Kendall's tau",
    "regret": "how much slower the predicted best is than the best",
    "error": "median relative error of the seconds",
}


def table_of(rows: Sequence[EvaluationRow], measure: str) -> str:
    """One Markdown table: a column a simulator, and the mean. measure: of `RankingScores`."""
    columns = list(dict.fromkeys(row.simulator for row in rows))
    domains = list(dict.fromkeys(row.line for row in rows))
    cells = {(row.line, row.simulator): row.scores for row in rows}
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


def _cell(scores: RankingScores | None, measure: str) -> str:
    value = float("nan") if scores is None else float(getattr(scores, measure))
    return "–" if np.isnan(value) else f"{value:.3f}"


def draw_curves(rows: Sequence[EvaluationRow], file: Path, measure: str = "beyond_noise") -> None:
    """Learning curves: a panel a domain, a line a simulator."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    domains = list(dict.fromkeys(row.line for row in rows))
    figure, axes = plt.subplots(
        1, len(domains), figsize=(4.5 * len(domains), 3.4), squeeze=False, sharey=True
    )
    for axis, domain in zip(axes[0], domains, strict=True):
        of_domain = [row for row in rows if row.line == domain]
        for simulator in dict.fromkeys(row.simulator for row in of_domain):
            points = [row for row in of_domain if row.simulator == simulator]
            values = [getattr(row.scores, measure) for row in points]
            axis.plot([row.trials for row in points], values, marker="o", label=simulator)
        axis.set(title=domain, xlabel="trials", ylabel=MEASURES[measure])
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
