"""Evaluates the simulators on a dataset and writes tables and pictures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import autosync.simulator
from autosync.documents import content_hash
from autosync.simulator.evaluation.compared_models import MakeModel, maker, standard_models
from autosync.simulator.evaluation.evaluation_jobs import Say, TableJobs, source_digest
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
    unless the page is of other measurements. What an interrupted run has found of a table is kept,
    a file a domain in FOLDER/unfinished, and not done again by the same code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "evaluation.md"
    head = "\n".join(["# Evaluation of the simulators", "", describe(measured)])
    sections = _sections(page, head)
    subjects = subjects_of(measured)
    code = source_digest(Path(autosync.__path__[0]), Path(autosync.simulator.__path__[0]))
    stamp = content_hash([head, code, str(evaluation.seeds), str(evaluation.published_size)])
    for table in (each for each in EvaluationPlan().tables if each in evaluation.tables):
        say(f"{table}: {TITLES[table]}")
        jobs = TableJobs(table, folder, stamp, evaluation.jobs, say)
        sections[TITLES[table]] = _WRITERS[table](TableOf(subjects, folder, evaluation, jobs))
        parts = [
            f"## {title}\n\n{sections[title]}" for title in TITLES.values() if title in sections
        ]
        page.write_text("\n\n".join([head, *parts]) + "\n")
        jobs.forget()


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


@dataclass(frozen=True, slots=True)
class TableOf:
    """What a table is made of, and who does its work."""

    subjects: Sequence[EvaluatedDomain]
    folder: Path
    evaluation: EvaluationPlan
    jobs: TableJobs

    def rows(
        self, work: Callable[..., list[EvaluationRow]], jobs: dict[str, tuple[Any, ...]]
    ) -> list[EvaluationRow]:
        return [row for rows in self.jobs.results(list[EvaluationRow], work, jobs) for row in rows]


def searches(
    subject: EvaluatedDomain, subjects: Sequence[EvaluatedDomain]
) -> dict[str, list[float]]:
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
    return {name: curve.tolist() for name, curve in curves.items()}


def _picks(table: TableOf) -> str:
    picked = [subject for subject in table.subjects if len(subject.measured.picks)]
    if not picked:
        return "No search has picked anything in these domains."
    models = {name: maker(Recipe(name)) for name in PICK_MODELS}
    jobs = {s.name: (s, table.subjects, models, table.evaluation.seeds[0]) for s in picked}
    found = table.jobs.results(list[PickRow], rank_picks, jobs)
    rows = [row for each in found for row in each]
    parts = [pick_summary(rows), *(pick_table(rows, measure) for measure in PICK_MEASURES)]
    chosen = [row for subject in picked for row in chosen_rows(subject)]
    return "\n\n".join([*parts, "As they were chosen:", chosen_table(chosen)])


def _comparison(table: TableOf) -> str:
    models = standard_models(table.evaluation.published_size)
    jobs = {s.name: ([s], models, table.evaluation.seeds) for s in table.subjects}
    rows = table.rows(compare_simulators, jobs)
    tables = [summary_table(rows), *(table_of(rows, measure) for measure in MEASURES)]
    return "\n\n".join(tables)


def _features(table: TableOf) -> str:
    jobs = {s.name: ([s], table.evaluation.seeds[:1]) for s in table.subjects}
    rows = table.rows(compare_features, jobs)
    return "\n\n".join(table_of(rows, name, "setting") for name in ("accuracy", "beyond_noise"))


def _transfer(table: TableOf) -> str:
    if len(table.subjects) < 2:
        return "There is one domain only."
    models = {name: maker(Recipe(name)) for name in TRANSFERRED}
    seeds = table.evaluation.seeds[:1]
    rows = table.rows(
        transfers_to, {s.name: (s, table.subjects, models, seeds) for s in table.subjects}
    )
    measures = ("accuracy", "beyond_noise", "fast_quarter", "regret")
    return "\n\n".join(transfer_table(rows, measure) for measure in measures)


def _curves(table: TableOf) -> str:
    jobs: dict[str, tuple[Any, ...]] = {}
    closed: dict[str, MakeModel] = {name: maker(Recipe(name)) for name in CLOSED_FORMS}
    networks: dict[str, MakeModel] = {"ensemble": maker(Recipe("ensemble"))}
    for subject in table.subjects:
        jobs[subject.name] = (subject, closed, COUNTS, table.evaluation.seeds)
        jobs[f"{subject.name}, ensemble"] = (subject, networks, COUNTS, table.evaluation.seeds[:1])
    rows = table.rows(learning_curve, jobs)
    draw_curves(rows, table.folder / "learning_curves.svg")
    named = [
        EvaluationRow(r.domain, f"{r.simulator}, {r.trials}", "", r.trials, r.scores) for r in rows
    ]
    return f"![](learning_curves.svg)\n\n{table_of(named, 'beyond_noise')}"


def _search(table: TableOf) -> str:
    jobs = {subject.name: (subject, table.subjects) for subject in table.subjects}
    curves = table.jobs.results(dict[str, list[float]], searches, jobs)
    lines = []
    for number, (subject, curve) in enumerate(zip(table.subjects, curves, strict=True)):
        picture = f"search_{number}.svg"
        drawn = {name: np.array(values) for name, values in curve.items()}
        draw_searches(drawn, subject.name, table.folder / picture)
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

_WRITERS: dict[str, Callable[[TableOf], str]] = {
    "picks": _picks,
    "comparison": _comparison,
    "features": _features,
    "transfer": _transfer,
    "curves": _curves,
    "search": _search,
}
