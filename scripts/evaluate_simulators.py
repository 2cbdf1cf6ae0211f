#!/usr/bin/env python3
"""Evaluate every simulator on a folder of measured strategies; write tables and pictures.

Run with the project's environment:
    .venv/bin/python scripts/evaluate_simulators.py datasets/runtimes -o docs/evaluation --jobs 2

Interrupted, the same command goes on with the domains of a table that are missing; tables that are
done are done again, so name the missing ones with `--tables`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autosync.errors import AutosyncError
from autosync.simulator.evaluation.evaluation_run import EvaluationPlan, evaluate
from autosync.simulator.evaluation.measured_dataset import load_dataset

TABLES = EvaluationPlan().tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="holds trials.parquet and domains/")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--published-size", action="store_true", help="also an LSTM of the published size, 3 x 128"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each")
    given = parser.parse_args()
    asked = EvaluationPlan(
        tuple(given.tables), tuple(given.seeds), given.published_size, given.jobs
    )
    try:
        evaluate(load_dataset(given.dataset), given.out, asked, say=partial(print, flush=True))
    except AutosyncError as error:
        print(error, file=sys.stderr)
        return 1
    print(given.out / "evaluation.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
