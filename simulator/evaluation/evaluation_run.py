"""Evaluates the simulators on a dataset and writes tables and pictures."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from autosync.simulator.evaluation.compared_models import MakeModel, maker, standard_models
from autosync.simulator.evaluation.evaluation_tables import (
    SEEDS,
    EvaluatedDomain,
    EvaluationRow,
    compare_features,
    compare_simulators,
    guided_search,
    learning_curve,
    subjects_of,
    transfers_to,
)
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
from autosync.simulator.evaluation.pick_report import (
    PICK_MEASURES,
    chosen_table,
    pick_summary,
    pick_table,
)
from autosync.simulator.evaluation.pick_tables import PickRow, chosen_rows, rank_picks
from autosync.simulator.evaluation.report import (
    MEASURES,
    draw_curves,
    draw_searches,
    summary_table,
    table_of,
    transfer_table,
)
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.recipe import Recipe
from autosync.simulator.learned.transfer import transferred

F64 = NDArray[np.float64]
Say = Callable[[str], None]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What to do. tables: of `picks`, `comparison`, `features`, `transfer`, `curves`, `search`.

    seeds: of splits and networks; the ablation of features and networks that transfer or grow
        take the first one. published_size: also an
        LSTM of 3 x 128. jobs: processes, each with a domain.
    """

    tables: tuple[str, ...] = ("picks", "comparison", "features", "transfer", "curves", "search")
    seeds: tuple[int, ...] = SEEDS
    published_size: bool = False
    jobs: int = 1


def evaluate(
    measured: Sequence[MeasuredDomain], folder: Path, evaluation: EvaluationPlan, say: Say
) -> None:
    """Write FOLDER/evaluation.md and its pictures; `say` is told what is being done.

    The page is written after every table. Tables that were not asked for stay as they are there,
    unless the page is of other measurements.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "evaluation.md"
    head = "\n".join(["# Evaluation of the simulators", "", describe(measured)])
    sections = _sections(page, head)
    subjects = subjects_of(measured)
    for table in EvaluationPlan().tables:
        if table in evaluation.tables:
            say(f"{table}: {TITLES[table]}")
            sections[TITLES[table]] = _WRITERS[table](subjects, folder, evaluation)
        parts = [
            f"## {title}\n\n{sections[title]}" for title in TITLES.values() if title in sections
        ]
        page.write_text("\n\n".join([head, *parts]) + "\n")


TITLES = {
    "picks": "Picks",
    "comparison": "Held-out strategies (70/15/15)",
    "features": "Features read by an LSTM that stands alone",
    "transfer": "Domains ranked without a trial",
    "curves": "Learning curves",
    "search": "Searches guided by simulators",
}


def _sections(page: Path, head: str) -> dict[str, str]:
    """The sections of a page that begins with `head`, by title; none where it does not."""
    text = page.read_text() if page.is_file() else ""
    if not text.startswith(head):
        return {}
    found = [part.partition("\n") for part in text.removeprefix(head).split("\n## ")[1:]]
    return {title: body.strip() for title, _, body in found}


def describe(measured: Sequence[MeasuredDomain]) -> str:
    """What was measured, as a Markdown table."""
    lines = ["| domain | strategies | picks | failed | noise of a pass | fastest / slowest, ms |"]
    lines.append("|---|---|---|---|---|---|")
    for each in measured:
        label = each.label_seconds * 1e3
        noise = "one pass only" if each.noise is None else f"{each.noise:.2%}"
        span = f"{label.min():.1f} / {label.max():.1f}"
        count = f"{len(each)} | {len(each.picks)} | {each.failed}"
        lines.append(f"| {each.name} | {count} | {noise} | {span} |")
    return "\n".join(lines)


def searches(subject: EvaluatedDomain, subjects: Sequence[EvaluatedDomain]) -> dict[str, F64]:
    """Random, a Gaussian process from the timeline, and one transferred from all others."""
    make = maker(Recipe("gaussian"))
    others = [s.trials for s in subjects if s.measured.domain.id != subject.measured.domain.id]
    curves = {
        "random": guided_search(subject, lambda: None),
        "from the timeline": guided_search(subject, lambda: LearnedSimulator(make(0))),
    }
    if others:
        curves["transferred"] = guided_search(
            subject, lambda: transferred(make(0), others, subject.measured.domain)
        )
    return curves


def _picks(subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan) -> str:
    picked = [subject for subject in subjects if len(subject.measured.picks)]
    if not picked:
        return "No search has picked anything in these domains."
    models = {name: maker(Recipe(name)) for name in PICK_MODELS}
    tasks = [(s, subjects, models, evaluation.seeds[0]) for s in picked]
    rows: list[PickRow] = [r for found in _each(rank_picks, tasks, evaluation.jobs) for r in found]
    parts = [pick_summary(rows), *(pick_table(rows, measure) for measure in PICK_MEASURES)]
    chosen = [row for subject in picked for row in chosen_rows(subject)]
    return "\n\n".join([*parts, "As they were chosen:", chosen_table(chosen)])


def _comparison(
    subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan
) -> str:
    models = standard_models(evaluation.published_size)
    rows = _rows(
        compare_simulators, [([s], models, evaluation.seeds) for s in subjects], evaluation
    )
    tables = [summary_table(rows), *(table_of(rows, measure) for measure in MEASURES)]
    return "\n\n".join(tables)


def _features(subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan) -> str:
    rows = _rows(compare_features, [([s], evaluation.seeds[:1]) for s in subjects], evaluation)
    return "\n\n".join(table_of(rows, name, "setting") for name in ("accuracy", "beyond_noise"))


def _transfer(subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan) -> str:
    if len(subjects) < 2:
        return "There is one domain only."
    models = {name: maker(Recipe(name)) for name in TRANSFERRED}
    tasks = [(s, subjects, models, evaluation.seeds[:1]) for s in subjects]
    rows = _rows(transfers_to, tasks, evaluation)
    measures = ("accuracy", "beyond_noise", "fast_quarter", "regret")
    return "\n\n".join(transfer_table(rows, measure) for measure in measures)


def _curves(subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan) -> str:
    tasks: list[tuple[EvaluatedDomain, dict[str, MakeModel], tuple[int, ...], tuple[int, ...]]] = []
    for subject in subjects:
        closed: dict[str, MakeModel] = {name: maker(Recipe(name)) for name in CLOSED_FORMS}
        tasks.append((subject, closed, COUNTS, evaluation.seeds))
        tasks.append(
            (subject, {"ensemble": maker(Recipe("ensemble"))}, COUNTS, evaluation.seeds[:1])
        )
    rows = _rows(learning_curve, tasks, evaluation)
    draw_curves(rows, folder / "learning_curves.svg")
    named = [
        EvaluationRow(r.domain, f"{r.simulator}, {r.trials}", "", r.trials, r.scores) for r in rows
    ]
    return f"![](learning_curves.svg)\n\n{table_of(named, 'beyond_noise')}"


def _search(subjects: Sequence[EvaluatedDomain], folder: Path, evaluation: EvaluationPlan) -> str:
    curves = _each(searches, [(subject, subjects) for subject in subjects], evaluation.jobs)
    lines = []
    for number, (subject, curve) in enumerate(zip(subjects, curves, strict=True)):
        picture = f"search_{number}.svg"
        draw_searches(curve, subject.name, folder / picture)
        lines.append(f"![{subject.name}]({picture})")
    return "\n".join(lines)


PICK_MODELS: tuple[Literal["linear", "gaussian", "trees", "ensemble"], ...] = (
    "linear",
    "gaussian",
    "trees",
    "ensemble",
)
CLOSED_FORMS: tuple[Literal["linear", "gaussian"], ...] = ("linear", "gaussian")
TRANSFERRED: tuple[Literal["linear", "gaussian", "lstm"], ...] = (*CLOSED_FORMS, "lstm")
COUNTS = (0, 5, 10, 20, 40, 80, 150)

_WRITERS: dict[str, Callable[[Sequence[EvaluatedDomain], Path, EvaluationPlan], str]] = {
    "picks": _picks,
    "comparison": _comparison,
    "features": _features,
    "transfer": _transfer,
    "curves": _curves,
    "search": _search,
}


def _rows(
    table: Callable[..., list[EvaluationRow]],
    tasks: Sequence[tuple[Any, ...]],
    evaluation: EvaluationPlan,
) -> list[EvaluationRow]:
    return [row for rows in _each(table, tasks, evaluation.jobs) for row in rows]


def _each(work: Callable[..., R], tasks: Sequence[tuple[Any, ...]], jobs: int) -> list[R]:
    """`work` done on every task, in the tasks' order."""
    if jobs < 2:
        return [work(*task) for task in tasks]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, *zip(*tasks, strict=True)))
