"""Seconds from `autosync rank` to its table, each in a new process, in a folder with a database.

    python -m benchmarks.search.cold_rank [--repeats 5] [--proposals 30000]

The kernels are compiled once a machine (`make install` does it); what is timed is what a user
waits for at the shell. Beside it stand the seconds of all cores, which other load on the machine
changes less.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from autosync.api.db import migrate
from benchmarks.output import option_parser

ROOT = Path(__file__).resolve().parents[2]


class Taken(NamedTuple):
    seconds: float
    core_seconds: float


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--proposals", type=int, help="by default the command's own")
    given = parser.parse_args()
    options = ["--proposals", str(given.proposals)] if given.proposals else []
    with tempfile.TemporaryDirectory() as folder:
        migrate(f"sqlite:///{Path(folder) / 'autosync.db'}")
        for model in ("resnet50", "bert_base"):
            taken = [rank_seconds(Path(folder), model, options) for _ in range(given.repeats)]
            seconds = [each.seconds for each in taken]
            print(
                f"autosync rank {model} example-4x1: median {median(seconds):.2f} s, "
                f"{min(seconds):.2f} to {max(seconds):.2f} s over {given.repeats} processes, "
                f"{median(each.core_seconds for each in taken):.2f} core-seconds"
            )


def rank_seconds(folder: Path, model: str, options: list[str]) -> Taken:
    words = ["-m", "autosync.api.cli.main", "rank", model, "example-4x1", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, start = _core_seconds(), time.perf_counter()
    subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True
    )
    return Taken(time.perf_counter() - start, _core_seconds() - before)


def _core_seconds() -> float:
    """Of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
