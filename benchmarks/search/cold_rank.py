"""Seconds from `autosync rank` to its table, each in a new process, in a folder with a database.

    python -m benchmarks.search.cold_rank

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
REPEATS = 5


class Taken(NamedTuple):
    seconds: float
    core_seconds: float


def main() -> None:
    option_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        migrate(f"sqlite:///{Path(folder) / 'autosync.db'}")
        for model in ("resnet50", "bert_base"):
            taken = [rank_seconds(Path(folder), model) for _ in range(REPEATS)]
            seconds = [each.seconds for each in taken]
            print(
                f"autosync rank {model} example-4x1: median {median(seconds):.2f} s, "
                f"{min(seconds):.2f} to {max(seconds):.2f} s over {REPEATS} processes, "
                f"{median(each.core_seconds for each in taken):.2f} core-seconds"
            )


def rank_seconds(folder: Path, model: str) -> Taken:
    words = ["-m", "autosync.api.cli.main", "rank", model, "example-4x1"]
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
