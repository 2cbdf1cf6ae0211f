"""Seconds from `autosync rank` to its table, each time in a new process.

    python -m benchmarks.search.cold_rank [--repeats 5]

The kernels are compiled once a machine (`make install` does it); what is timed is what a user
waits for at the shell.
"""

import argparse
import subprocess
import sys
import time
from statistics import median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for model in ("resnet50", "bert-base"):
        seconds = [rank_seconds(model) for _ in range(repeats)]
        print(
            f"autosync rank {model} example-4x1: median {median(seconds):.2f} s, "
            f"{min(seconds):.2f} to {max(seconds):.2f} s over {repeats} processes"
        )


def rank_seconds(model: str) -> float:
    command = [sys.executable, "-m", "autosync.api.cli.main", "rank", model, "example-4x1"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
