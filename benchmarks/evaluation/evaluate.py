"""Evaluates every simulator on a folder of measured strategies; writes one page of tables.

    python -m benchmarks.evaluation.evaluate datasets/runtimes -o OUT --jobs 2 [--tables picks]

The page is written after every table. Tables that were not asked for stay as they are there, unless
the page is of other measurements. Of several jobs each works on one domain.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from autosync.errors import AutosyncError
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from benchmarks.evaluation.evaluated_domain import EvaluatedDomain, evaluated_domains, models_of
from benchmarks.evaluation.pick_tables import (
    PICK_MEASURES,
    chosen_rows,
    chosen_table,
    pick_summary,
    pick_table,
    rank_picks,
)
from benchmarks.evaluation.strategy_tables import (
    COUNTS,
    MEASURES,
    SEEDS,
    EvaluationRow,
    draw_curves,
    held_out_strategies,
    learning_curve,
    summary_table,
    table_of,
    without_a_trial,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What tables are made of. seeds: of splits and networks; transfer and picks take the first.
    jobs: processes, one core each."""

    subjects: Sequence[EvaluatedDomain]
    folder: Path
    seeds: tuple[int, ...] = SEEDS
    jobs: int = 1

    def rows(self, work: Callable[..., list[T]], *arguments: Any) -> Iterator[T]:
        """`work` done on every domain, and the arguments."""
        if self.jobs < 2:
            for subject in self.subjects:
                yield from work(subject, *arguments)
            return
        with ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn")) as pool:
            for done in [pool.submit(work, subject, *arguments) for subject in self.subjects]:
                yield from done.result()


def _picks(of: Evaluation) -> str:
    picked = [subject for subject in of.subjects if len(subject.measured.picks)]
    if not picked:
        return "No search has picked anything in these domains."
    models = models_of("gaussian", "trees", "ensemble")
    rows = list(of.rows(rank_picks, of.subjects, models, of.seeds[0]))
    chosen = [row for subject in picked for row in chosen_rows(subject)]
    tables = [pick_summary(rows), *(pick_table(rows, measure) for measure in PICK_MEASURES)]
    return "\n\n".join([*tables, "As they were chosen:", chosen_table(chosen)])


def _comparison(of: Evaluation) -> str:
    models = models_of("gaussian", "trees", "ensemble")
    rows = list(of.rows(held_out_strategies, models, of.seeds))
    return "\n\n".join([summary_table(rows), *(table_of(rows, measure) for measure in MEASURES)])


def _transfer(of: Evaluation) -> str:
    if len(of.subjects) < 2:
        return "There is one domain only."
    models = models_of("gaussian", "trees", "lstm")
    rows = list(of.rows(without_a_trial, of.subjects, models, of.seeds[0]))
    measures = ("accuracy", "beyond_noise", "fast_quarter", "regret")
    return "\n\n".join(table_of(rows, measure) for measure in measures)


def _curves(of: Evaluation) -> str:
    rows = list(of.rows(learning_curve, models_of("gaussian", "trees"), COUNTS, of.seeds))
    rows += of.rows(learning_curve, models_of("ensemble"), COUNTS, of.seeds[:1])
    draw_curves(rows, of.folder / "learning_curves.svg")
    named = [
        EvaluationRow(row.line, f"{row.simulator}, {row.trials}", row.trials, row.scores)
        for row in rows
    ]
    return f"![](learning_curves.svg)\n\n{table_of(named, 'beyond_noise')}"


TABLES: dict[str, tuple[str, Callable[[Evaluation], str]]] = {
    "picks": ("Picks", _picks),
    "comparison": ("Held-out strategies (70/15/15)", _comparison),
    "transfer": ("Domains ranked without a trial", _transfer),
    "curves": ("Learning curves", _curves),
}
"""Title and writer of each section, in their order."""


def evaluate(
    measured: Sequence[MeasuredDomain],
    folder: Path,
    tables: Sequence[str] = tuple(TABLES),
    seeds: tuple[int, ...] = SEEDS,
    jobs: int = 1,
) -> None:
    """Write FOLDER/evaluation.md and its picture."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "evaluation.md"
    head = f"# Evaluation of the simulators\n\n{describe(measured)}"
    sections = _sections(page, head)
    evaluation = Evaluation(evaluated_domains(measured), folder, seeds, jobs)
    titles = [title for title, _ in TABLES.values()]
    for title, write in (TABLES[name] for name in TABLES if name in tables):
        sections[title] = write(evaluation)
        parts = [f"## {each}\n\n{sections[each]}" for each in titles if each in sections]
        page.write_text("\n\n".join([head, *parts]) + "\n")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="holds trials.parquet and domains/")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=tuple(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each")
    given = parser.parse_args()
    try:
        evaluate(
            load_dataset(given.dataset), given.out, given.tables, tuple(given.seeds), given.jobs
        )
    except AutosyncError as error:
        print(error, file=sys.stderr)
        return 1
    print(given.out / "evaluation.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
