"""Random faults, one trial after another, against the whole path: queue, store, pool, testbed.

python -m benchmarks.faults.soak [--faults 200] [--seed 1] [--ranks 2]

Every fault is a trial of one tuning in a database of its own, followed by a trial without a fault.
One process measures (`benchmarks.faults.soak_launcher`); this one kills it where the fault is the
launcher's, starts the next, and looks at what is left: each trial must be recorded once, each
fault be named rightly, no process and no testbed may outlive its launcher, and every trial
without a fault must succeed. Exit status 1 where one of these does not hold.
"""

import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

from sqlalchemy import select

from autosync.api.db import connect, migrate
from autosync.api.db.tables import TrialRow
from autosync.api.engine.database_store import DatabaseStore
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.environment import PASSED_VARIABLE
from autosync.search.designs import known_designs
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Proposal
from benchmarks.faults.soak_launcher import LAUNCHER, LINK, PLAIN, REFUSED, claim_anew
from benchmarks.output import option_parser
from tests.domains import chain_graph, domain_of, grid_cluster

EXPECTED = {
    "killed": {"crashed"},
    "stopped": {"timeout"},
    "oom": {"out_of_memory"},
    LINK: {"timeout", "crashed"},
    REFUSED: {"refused"},
    LAUNCHER: {"launcher killed"},
}
"""What each fault is to be called. A link that is down: whether the kernel tells the ranks before
the trial's time is over is the kernel's choice."""

DESIGNS = (
    known_designs.ddp,
    known_designs.dear,
    known_designs.ps_load_balanced,
    known_designs.priority_sliced,
)
TIMEOUT_SECONDS = 8.0
END_SECONDS = 20.0
"""How long what belonged to a launcher may take to end after it."""

MARK = "AUTOSYNC_SOAK"
"""In the environment of a launcher and all that it starts."""

ROOT = Path(__file__).parents[2]


@dataclass
class Heard:
    """What the launchers reported and left. returned: what each trial came back with, every time.
    reasons: the messages and ends of stderr of those that failed."""

    named: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    returned: dict[str, list[str]] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """All faults of one kind. lost: trials without a record. doubled: trials with two, or that
    ran to their end twice. left: processes and testbeds that outlived their launcher.
    next_failed: trials without a fault, after one of this kind, that failed. reasons: of those
    that were named wrongly."""

    fault: str
    count: int
    named: dict[str, int]
    lost: int
    doubled: int
    left: int
    next_failed: int
    reasons: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not (self.reasons or self.lost or self.doubled or self.left or self.next_failed)


def soak(faults: int, seed: int, ranks: int, folder: Path) -> list[FaultCounts]:
    """Run the faults, as many of each kind.

    Raises:
        SystemExit: a launcher ended by itself before its work was done.
    """
    url = f"sqlite:///{folder / 'soak.db'}"
    migrate(url)
    keys = drawn_keys(faults, seed, ranks)
    tuning_id = prepare(url, keys, seed, ranks)
    heard = Heard()
    while len(heard.returned) < len(keys):
        token = secrets.token_hex(8)
        last = run_launcher(url, tuning_id, token, heard)
        heard.left[last] += left_behind(token)
    recorded = Counter(recorded_keys(url))
    return [row_of(kind, keys, heard, recorded) for kind in EXPECTED]


def drawn_keys(faults: int, seed: int, ranks: int) -> list[str]:
    """`NUMBER/FAULT:RANK`, every kind equally often, each followed by `NUMBER/plain`."""
    rng = random.Random(seed)
    kinds = list(islice(cycle(EXPECTED), faults))
    rng.shuffle(kinds)
    return [
        key
        for number, kind in enumerate(kinds)
        for key in (f"{number:03d}/{kind}:{rng.randrange(ranks)}", f"{number:03d}/{PLAIN}")
    ]


def prepare(url: str, keys: list[str], seed: int, ranks: int) -> str:
    """A tuning whose proposals are the keys; its id."""
    rng = random.Random(seed)
    domain = domain_of(chain_graph(((200_000,),) * 8), grid_cluster(ranks, gbps=2.0))
    strategies = [design(domain) for design in DESIGNS]
    settings = Settings(warmup=1, iterations=3, timeout_seconds=TIMEOUT_SECONDS, probe=False)
    database = connect(url)
    try:
        tuning_id = enqueue(database, TuningRequest(domain, settings, launcher="testbed"))
        store = DatabaseStore(database, tuning_id, claim_anew(database, tuning_id).fence)
        drawn = [Candidate(rng.choice(strategies), 0.0, "none", "soak") for _ in keys]
        store.propose(
            [Proposal(key, "search", 0, one) for key, one in zip(keys, drawn, strict=True)]
        )
    finally:
        database.close()
    return tuning_id


def run_launcher(url: str, tuning_id: str, token: str, heard: Heard) -> str:
    """One launcher's life, until it is killed or done; the key that it had to do with last."""
    command = [sys.executable, "-m", "benchmarks.faults.soak_launcher", url, tuning_id]
    launcher = subprocess.Popen(
        [*command, *heard.killed],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, MARK: token, PASSED_VARIABLE: MARK, "PYTHONPATH": str(ROOT)},
    )
    key, killed = "", False
    with launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            report = json.loads(line)
            if key := report.get("kill", ""):
                launcher.kill()
                killed = True
                heard.killed.append(key)
                heard.named[key] = "launcher killed"
            else:
                key = report["returned"]
                heard.named.setdefault(key, report["kind"])
                heard.reasons.setdefault(key, report["reason"])
                heard.returned.setdefault(key, []).append(report["kind"])
            print(f"\r{len(heard.returned)} trials, now {key:24s}", end="", file=sys.stderr)
    if launcher.returncode and not killed:
        raise SystemExit(f"\nthe launcher ended with status {launcher.returncode}")
    return key


def left_behind(token: str) -> int:
    """What still lives of a launcher that has ended, once it had time to end too."""
    deadline = time.monotonic() + END_SECONDS
    while (left := len(marked_processes(token))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def marked_processes(token: str) -> list[int]:
    """Workers, and the supervisor without which a testbed's namespaces are gone."""
    mark = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or belongs to someone else
    return found


def recorded_keys(url: str) -> list[str]:
    database = connect(url)
    try:
        with database.reading() as session:
            return list(session.scalars(select(TrialRow.key)))
    finally:
        database.close()


def row_of(kind: str, keys: list[str], heard: Heard, recorded: Counter[str]) -> FaultCounts:
    mine = [key for key in keys if key.partition("/")[2].partition(":")[0] == kind]
    plain = [f"{key.partition('/')[0]}/{PLAIN}" for key in mine]
    sound = [*plain, *(key for key in mine if kind == LAUNCHER)]
    both = [*mine, *plain]
    wrong = [key for key in mine if heard.named[key] not in EXPECTED[kind]]
    return FaultCounts(
        fault=kind,
        count=len(mine),
        named=dict(Counter(heard.named[key] for key in mine)),
        lost=sum(recorded[key] == 0 for key in both),
        doubled=sum(recorded[key] > 1 or len(heard.returned[key]) > 1 for key in both),
        left=sum(heard.left[key] for key in both),
        next_failed=sum(heard.returned[key][-1] != "ok" for key in sound),
        reasons=tuple(f"{key}: {heard.reasons.get(key, '')}" for key in wrong),
    )


def show(rows: list[FaultCounts]) -> None:
    print(
        f"{'fault':10s}{'count':>6s}  {'classified as':28s}{'lost':>6s}{'doubled':>9s}"
        f"{'left behind':>13s}{'next failed':>13s}"
    )
    for row in rows:
        named = ", ".join(f"{count} {name}" for name, count in sorted(row.named.items()))
        print(
            f"{row.fault:10s}{row.count:6d}  {named:28s}{row.lost:6d}{row.doubled:9d}"
            f"{row.left:13d}{row.next_failed:13d}{'' if row.sound else '  <- WRONG'}"
        )
    for reason in (reason for row in rows for reason in row.reasons):
        print(f"\n{reason}")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autosync-soak-") as folder:
        rows = soak(given.faults, given.seed, given.ranks, Path(folder))
    print(file=sys.stderr)
    show(rows)
    print(f"{given.faults} faults, seed {given.seed}, {time.monotonic() - begun:.0f} s")
    sys.exit(0 if all(row.sound for row in rows) else 1)


if __name__ == "__main__":
    main()
