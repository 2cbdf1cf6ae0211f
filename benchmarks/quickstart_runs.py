"""`autosync quickstart` several times, each from nothing in a new folder: is the answer always near
the limit?

    python -m benchmarks.quickstart_runs [--runs 3] [-o FILE]

Leave the machine alone meanwhile: a run takes two to three minutes. Each prints its answer beside
torch's DDP (medians of interleaved repeats) and its share of the domain's limit; -o adds them to a
file, a JSON line a run, with the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.measure import provenance

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class QuickstartRun:
    """words: of the answer. seconds: of the whole command."""

    words: str
    best_seconds: float
    ddp_seconds: float
    speedup: float
    speedup_low: float
    speedup_high: float
    limit_seconds: float
    seconds: float
    measured_on: str
    machine: str

    @property
    def line(self) -> str:
        return (
            f"{self.best_seconds * 1e3:.1f} ms beside DDP's {self.ddp_seconds * 1e3:.1f}, "
            f"{self.speedup:.2f} times ({self.speedup_low:.2f} to {self.speedup_high:.2f}), "
            f"{self.limit_seconds / self.best_seconds:.1%} of the limit, {self.seconds:.0f} s: "
            f"{self.words}"
        )


def autosync(folder: Path, *words: str) -> str:
    """What the command prints.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "autosync.api.cli.main", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"autosync {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_once(folder: Path) -> QuickstartRun:
    started = time.monotonic()
    autosync(folder, "quickstart", "--leave", "-o", "best.json")
    seconds = time.monotonic() - started
    (tuning,) = json.loads(autosync(folder, "tunings", "--json"))
    shown = json.loads(autosync(folder, "show", tuning["id"], "--json"))
    result = shown["tuning"]["result"]
    own = {field.name: result[field.name] for field in fields(QuickstartRun)[:7]}
    machine = ", ".join(f"{name} {value}" for name, value in provenance().items())
    return QuickstartRun(**own, seconds=seconds, measured_on=shown["measured_on"], machine=machine)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    for number in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            found = run_once(Path(folder))
        print(f"run {number + 1} of {given.runs}: {found.line}", flush=True)
        if given.out:
            with given.out.open("a") as lines:
                lines.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
