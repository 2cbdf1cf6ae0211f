"""Evaluates the simulators on a dataset and writes tables and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.evaluation.dataset import MeasuredDomain
from simulator.evaluation.report import (
    MEASURES,
    draw_curves,
    draw_searches,
    table_of,
    transfer_table,
)
from simulator.evaluation.tables import (
    SEEDS,
    MakeModel,
    Row,
    Subject,
    compare_features,
    compare_simulators,
    compare_transfers,
    guided_search,
    learning_curve,
    standard_models,
    subjects_of,
)
from simulator.learned.models import LinearModel
from simulator.learned.simulators import LearnedSimulator
from simulator.learned.transfer import transferred

F64 = NDArray[np.float64]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What to do. tables: of `comparison`, `features`, `transfer`, `curves`, `search`.

    seeds: of splits and networks. published: also the 3 x 128 LSTM.
    """

    tables: tuple[str, ...] = ("comparison", "features", "transfer", "curves", "search")
    seeds: tuple[int, ...] = SEEDS
    published: bool = False


def evaluate(
    measured: Sequence[MeasuredDomain], folder: Path, evaluation: Evaluation, say: Say
) -> None:
    """Write FOLDER/evaluation.md and its pictures; `say` hears what is being done."""
    folder.mkdir(parents=True, exist_ok=True)
    subjects = subjects_of(measured)
    models = standard_models(evaluation.published)
    sections = ["# Evaluation of the simulators", "", describe(measured)]
    if "comparison" in evaluation.tables:
        say("comparing simulators on held-out strategies")
        sections += _comparison(compare_simulators(subjects, models, evaluation.seeds))
    if "features" in evaluation.tables:
        say("comparing features")
        rows = compare_features(subjects, evaluation.seeds)
        sections += ["", "## Features read by an LSTM that stands alone", ""]
        sections += [table_of(rows, "accuracy", "setting"), ""]
        sections += [table_of(rows, "beyond_noise", "setting")]
    if "transfer" in evaluation.tables and len(subjects) > 1:
        say("transferring between domains")
        rows = compare_transfers(subjects, _transferable(models), evaluation.seeds)
        sections += ["", "## Domains ranked without a trial", ""]
        for measure in ("accuracy", "beyond_noise", "regret"):
            sections += [transfer_table(rows, measure), ""]
    if "curves" in evaluation.tables:
        say("drawing learning curves")
        chosen = {name: models[name] for name in ("linear", "ensemble")}
        rows = [r for s in subjects for r in learning_curve(s, chosen, seeds=evaluation.seeds)]
        draw_curves(rows, folder / "learning_curves.svg")
        sections += ["", "## Learning curves", "", "![](learning_curves.svg)", "", _curves(rows)]
    if "search" in evaluation.tables:
        say("searching with simulators")
        sections += ["", "## Searches guided by simulators", ""]
        for number, subject in enumerate(subjects):
            picture = f"search_{number}.svg"
            draw_searches(searches(subject, subjects), subject.name, folder / picture)
            sections.append(f"![{subject.name}]({picture})")
    (folder / "evaluation.md").write_text("\n".join(sections) + "\n")


def describe(measured: Sequence[MeasuredDomain]) -> str:
    """What was measured, as a Markdown table."""
    lines = ["| domain | strategies | failed | noise of a pass | fastest / slowest, ms |"]
    lines.append("|---|---|---|---|---|")
    for each in measured:
        label = each.label_seconds * 1e3
        noise = "one pass only" if each.noise is None else f"{each.noise:.2%}"
        span = f"{label.min():.1f} / {label.max():.1f}"
        lines.append(f"| {each.name} | {len(each)} | {each.failed} | {noise} | {span} |")
    return "\n".join(lines)


def searches(subject: Subject, subjects: Sequence[Subject]) -> dict[str, F64]:
    """Random, the timeline alone, the linear model untrained, and transferred from all others."""
    others = [s.trials for s in subjects if s.measured.domain.id != subject.measured.domain.id]
    curves = {
        "random": guided_search(subject, lambda: None),
        "from the timeline": guided_search(subject, lambda: LearnedSimulator(LinearModel())),
    }
    if others:
        curves["transferred"] = guided_search(
            subject, lambda: transferred(LinearModel(), others, subject.measured.domain)
        )
    return curves


def _comparison(rows: Sequence[Row]) -> list[str]:
    lines = ["", "## Held-out strategies (70/15/15)", ""]
    for measure in MEASURES:
        lines += [table_of(rows, measure), ""]
    return lines


def _curves(rows: Sequence[Row]) -> str:
    named = [Row(r.domain, f"{r.simulator}, {r.trials}", "", r.trials, r.scores) for r in rows]
    return table_of(named, "beyond_noise")


def _transferable(models: dict[str, MakeModel]) -> dict[str, MakeModel]:
    return {name: make for name, make in models.items() if name in ("linear", "lstm", "ensemble")}
