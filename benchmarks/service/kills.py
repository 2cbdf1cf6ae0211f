"""Workers killed with SIGKILL at random moments: is anything lost, measured twice, or answered
otherwise?

    python -m benchmarks.service.kills [--kills 1000] [--db URL] [--workers 3] [--seed 0]

Workers share a queue of equal tunings. One is killed a moment after it began, another takes its
place, and whatever it held goes on when its lease has ended. A killed worker counts where it held a
tuning. Trials are answered from a table, in 3 ms each, and the first are proposed beforehand, so
that kills fall among trials and writes.

In the end every tuning must have the trials of one that nobody disturbed, in their order, each once
and under claims that only grow, with the same ranking and the same answer. Prints what was killed;
exit status 1 where something is wrong.
"""

import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sqlalchemy import func, select

from autosync.api.db import Database, connect, migrate
from autosync.api.db.tables import FINAL, OutcomeRow, TrialRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore, read_trials
from autosync.api.engine.queue_worker import work
from autosync.api.engine.submission import enqueue
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.views.rankings import ranked_strategies
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Proposal
from autosync.trials.contract import TrialRequest
from benchmarks.output import option_parser
from tests.api.sample import candidates, proposal
from tests.domains import domain_of, grid_cluster
from tests.search.collect.scripted_launcher import ScriptedLauncher, steady

SETTINGS = Settings(budget=20, proposals=64, repeats=10, probe=False)
DOMAIN = domain_of(cluster=grid_cluster(2))
REQUEST = TuningRequest(DOMAIN, SETTINGS, simulator="analytic", launcher="local")
PROPOSED = 12
"""Of the first round; a second one is proposed by the workers."""
TRIAL_SECONDS = 0.003
LEASE_SECONDS = 1.5
LONGEST_LIFE_SECONDS = 0.5
SPARE = 6
"""Tunings that are under way for each worker: while one waits for a lease to end, others go on."""
END_SECONDS = 120.0
"""For the tunings that are left when all kills are done."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What a tuning leaves. trials: key and seconds, in the order in which they were stored."""

    trials: tuple[tuple[str, tuple[float, ...]], ...]
    ranking: tuple[tuple[str, float | None, int], ...]
    answer: tuple[str, float, float] | None


@dataclass(frozen=True, slots=True)
class Life:
    """A worker that was forked, and when it is to be killed."""

    pid: int
    until: float


@dataclass
class KillCount:
    """idle: killed with no tuning in hand; these do not count. first_trials: kills before the first
    trial of a tuning. stored: when a trial was stored that a killed worker had stored, by tuning
    and position."""

    kills: int = 0
    idle: int = 0
    first_trials: int = 0
    stored: dict[tuple[str, int], float] = field(default_factory=dict)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--db", help="an empty database; by default a SQLite file")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)  # each lost lease would be told
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = undisturbed_trace(Path(folder))
        url = asked.db or f"sqlite:///{folder}/kills.db"
        migrate(url)
        began = time.monotonic()
        counted = killed_workers(url, asked.kills, asked.workers, random.Random(asked.seed))
        database = connect(url)
        wrong = what_is_wrong(database, undisturbed, counted)
        tunings, trials = totals(database)
        database.close()
    print(
        f"{counted.kills} kills in {time.monotonic() - began:.0f} s on {url.partition(':')[0]}, "
        f"{counted.first_trials} of them before the first trial of a tuning, {counted.idle} more "
        f"between two tunings; {tunings} tunings, {trials:,} trials"
    )
    print("\n".join(wrong) or "nothing lost, nothing twice, every answer the same")
    sys.exit(bool(wrong))


def undisturbed_trace(folder: Path) -> Trace:
    """Of a tuning that nobody kills; workers are forked from here with its compiled kernels."""
    url = f"sqlite:///{folder}/undisturbed.db"
    migrate(url)
    database = connect(url)
    tuning_id = asked_for(database)
    run_worker(url, once=True)
    trace = trace_of(database, tuning_id)
    database.close()
    return trace


def killed_workers(url: str, kills: int, workers: int, rng: random.Random) -> KillCount:
    """Kill so many that hold a tuning, then let the last tunings end.

    Raises:
        TimeoutError: some never did.
    """
    database, counted = connect(url), KillCount()
    lives: list[Life] = []
    while counted.kills < kills:
        keep_busy(database, SPARE * workers)
        database.close()  # a worker inherits no connection of ours
        while len(lives) < workers:
            lives.append(begin_life(url, rng.uniform(0.0, LONGEST_LIFE_SECONDS)))
        lives.sort(key=lambda life: life.until)
        life = lives.pop(0)
        time.sleep(max(0.0, life.until - time.monotonic()))
        end_life(life)
        count_kill(database, life.pid, counted)
    try:
        lives += [begin_life(url, END_SECONDS) for _ in range(workers)]
        wait_for_end(database)
    finally:
        for life in lives:
            end_life(life)
        database.close()
    return counted


def begin_life(url: str, seconds: float) -> Life:
    pid = os.fork()
    if not pid:
        try:
            run_worker(url, once=False)
        finally:
            os._exit(1)
    return Life(pid, time.monotonic() + seconds)


def end_life(life: Life) -> None:
    os.kill(life.pid, signal.SIGKILL)
    os.waitpid(life.pid, 0)


def run_worker(url: str, once: bool) -> None:
    launcher = ScriptedLauncher(measured)
    stop = threading.Event()
    work(
        url,
        stop,
        once=once,
        trains=False,
        launcher_of=lambda name: launcher,
        lease_seconds=LEASE_SECONDS,
    )


def measured(request: TrialRequest, number: int) -> float:
    """The same for a strategy whoever measures it."""
    time.sleep(TRIAL_SECONDS)
    return steady(request, number)


def keep_busy(database: Database, count: int) -> None:
    with database.reading() as session:
        unfinished = (
            select(func.count()).select_from(TuningRow).where(TuningRow.state != "finished")
        )
        missing = count - session.scalars(unfinished).one()
    for _ in range(missing):
        asked_for(database)


def asked_for(database: Database) -> str:
    """A tuning whose first round is proposed; its id."""
    tuning_id = enqueue(database, REQUEST)
    held = job_queue.claim(database, "proposes", tuning_id=tuning_id)
    assert held is not None
    DatabaseStore(database, tuning_id, held.fence).propose(first_round())
    job_queue.release(database, held)
    return tuning_id


@cache
def first_round() -> list[Proposal]:
    return [proposal(each) for each in candidates(DOMAIN, PROPOSED)]


def count_kill(database: Database, pid: int, counted: KillCount) -> None:
    """What the dead worker held, and what it had stored of it."""
    with database.reading() as session:
        held = select(TuningRow.id).where(
            TuningRow.worker.endswith(f":{pid}"), TuningRow.state == "running"
        )
        tuning_id = session.scalars(held).first()
        if tuning_id is None:
            counted.idle += 1
            return
        rows = read_trials(session, tuning_id)
        counted.stored |= {(tuning_id, row.position): row.created_at for row in rows}
    counted.kills += 1
    counted.first_trials += not rows


def wait_for_end(database: Database) -> None:
    deadline = time.monotonic() + END_SECONDS
    left = select(func.count()).select_from(TuningRow).where(TuningRow.state.not_in(FINAL))
    while time.monotonic() < deadline:
        with database.reading() as session:
            if not session.scalars(left).one():
                return
        time.sleep(0.1)
    raise TimeoutError(f"not all tunings ended within {END_SECONDS:.0f} s")


def what_is_wrong(database: Database, undisturbed: Trace, counted: KillCount) -> list[str]:
    """Nothing, as it should be."""
    with database.reading() as session:
        tunings = session.execute(select(TuningRow.id, TuningRow.state, TuningRow.error)).all()
        moments = select(TrialRow.tuning_id, TrialRow.position, TrialRow.created_at)
        stored = {(row.tuning_id, row.position): row.created_at for row in session.execute(moments)}
    wrong = [f"{t.id}: {t.state} ({t.error})" for t in tunings if t.state != "finished"]
    for tuning in tunings:
        if trace_of(database, tuning.id) != undisturbed:
            wrong.append(f"{tuning.id}: not what an undisturbed tuning leaves")
        with database.reading() as session:
            fences = [row.fence for row in read_trials(session, tuning.id)]
        if fences != sorted(fences):
            wrong.append(f"{tuning.id}: written under an earlier claim: {fences}")
    lost = [place for place, moment in counted.stored.items() if stored.get(place) != moment]
    return wrong + [f"{place}: the trial that was stored there is not" for place in lost]


def trace_of(database: Database, tuning_id: str) -> Trace:
    trials = DatabaseStore(database, tuning_id, 0).trials()
    with database.reading() as session:
        ranked = ranked_strategies(session, tuning_id).items
        outcome = session.get(OutcomeRow, tuning_id)
    answer = None
    if outcome is not None:
        answer = outcome.strategy_hash, outcome.best_seconds, outcome.speedup
    return Trace(
        tuple((trial.key, trial.iteration_seconds) for trial in trials),
        tuple((row.strategy_id, row.step_seconds, row.trials) for row in ranked),
        answer,
    )


def totals(database: Database) -> tuple[int, int]:
    with database.reading() as session:
        tunings, trials = (
            session.scalars(select(func.count()).select_from(table)).one()
            for table in (TuningRow, TrialRow)
        )
    return tunings, trials


if __name__ == "__main__":
    main()
