"""The worker: claims jobs, runs tunings and trainings, renews their leases meanwhile."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from autosync.api.db.database import Database, connect
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore, LeaseLost
from autosync.api.engine.domain_measurement import with_measured_costs, with_measured_kernels
from autosync.api.engine.job_queue import Claim
from autosync.api.engine.leases import LEASE_SECONDS, ClaimedWork, EndReason, leased
from autosync.api.engine.registry import launcher_named
from autosync.api.engine.retention import prune
from autosync.api.engine.simulator_store import simulator_of
from autosync.api.engine.submission import load_request
from autosync.api.engine.tuning_answer import outcome_row
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.engine.worker_registry import registered
from autosync.cancellation import Cancelled, check_cancelled
from autosync.errors import AutosyncError
from autosync.search.loop.outcome import Outcome, TuningEvent
from autosync.search.loop.tuning_loop import tune
from autosync.trials.contract import Launcher, reporting_waits

POLL_SECONDS = 1.0
PRUNING_SECONDS = 3600.0
"""Between two looks for what is no longer kept."""
MOST_CLAIMS = 50
"""A tuning that was started this often, beyond once for each of its trials, and never ended takes
its worker down with it."""
MOST_TRAINING_CLAIMS = 3
"""A training that was begun this often and never ended is given up: the next one has its trials."""
log = logging.getLogger(__name__)


def work(
    url: str,
    stop: threading.Event,
    once: bool = False,
    *,
    trains: bool = True,
    keep_days: float | None = None,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Work off the queue until `stop`; with `once`, until nothing waits.

    When stopped in the middle of a tuning, breaks off what runs and gives the tuning back.
    trains: also the next versions of the simulator, one at a time, beside its tunings. keep_days:
    between tunings, removes what ended longer ago (`retention`); None keeps all.
    """
    database = connect(url)
    name = f"{socket.gethostname()}:{os.getpid()}"
    try:
        with registered(database, name, lease_seconds):
            _work(database, name, stop, once, trains, keep_days, launcher_of, lease_seconds)
    finally:
        database.close()


def _work(
    database: Database,
    name: str,
    stop: threading.Event,
    once: bool,
    trains: bool,
    keep_days: float | None,
    launcher_of: Callable[[str], Launcher],
    lease_seconds: float,
) -> None:
    training: threading.Thread | None = None
    prune_at = time.monotonic()
    try:
        while not stop.is_set():
            try:
                if keep_days is not None and time.monotonic() >= prune_at:
                    prune(database, keep_days, stop.is_set)
                    prune_at = time.monotonic() + PRUNING_SECONDS
                held = job_queue.claim(database, name, lease_seconds)
                if held is not None:
                    run_claim(database, held, stop, launcher_of, lease_seconds)
                    continue
                if training is not None and not training.is_alive():
                    training = None
                if trains and training is None:
                    training = _begin_training(database, name, stop, lease_seconds)
                if once and training is None:
                    return
            except OperationalError as error:  # the database is away: a claim ends by its lease
                log.warning("database: %s", error)
            stop.wait(POLL_SECONDS)
    finally:
        if training is not None:
            training.join()


def _begin_training(
    database: Database, worker: str, stop: threading.Event, lease_seconds: float
) -> threading.Thread | None:
    """A thread that runs the training that waits; None where there is none. It mostly waits for a
    process that stands still while trials run."""
    held = job_queue.claim(database, worker, lease_seconds, kind="training")
    if held is None:
        return None

    def run() -> None:
        try:
            run_claim(database, held, stop, lease_seconds=lease_seconds)
        except OperationalError as error:  # its claim ends by its lease
            log.warning("database: %s", error)

    thread = threading.Thread(target=run, name="training")
    thread.start()
    return thread


def train_next(
    database: Database, worker: str, stop: threading.Event, lease_seconds: float = LEASE_SECONDS
) -> bool:
    """Run the training that waits; whether there was one.

    Raises:
        OperationalError: the database is away.
    """
    held = job_queue.claim(database, worker, lease_seconds, kind="training")
    if held is not None:
        run_claim(database, held, stop, lease_seconds=lease_seconds)
    return held is not None


def run_claim(
    database: Database,
    held: Claim,
    stop: threading.Event,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Run one claimed job to one of its ends: its answer, what went wrong, or a request to stop.

    Raises:
        OperationalError: the database is away.
    """

    def reason_to_end() -> EndReason | None:
        return "interrupted" if stop.is_set() else job_queue.reason_to_end(database, held)

    work = ClaimedWork(
        renew=lambda seconds: job_queue.heartbeat(database, held, seconds),
        reason_to_end=reason_to_end,
        give_up=lambda reason: job_queue.give_up(database, held, reason),
    )
    log.info("%s %s: claimed (claim %d)", held.kind, held.job_id, held.fence)
    try:
        with leased(work, lease_seconds):
            try:
                check_cancelled()
                if held.kind == "tuning":
                    _tune(database, held, launcher_of)
                else:
                    _train(database, held)
            except (LeaseLost, OperationalError):
                raise
            except AutosyncError as error:
                _fail(database, held, str(error), reason_to_end())
            except Exception as error:  # process boundary: one broken job must not end the worker
                log.exception("%s %s failed", held.kind, held.job_id)
                _fail(database, held, f"{type(error).__name__}: {error}", reason_to_end())
    except LeaseLost as error:
        log.warning("%s", error)


def _tune(database: Database, held: Claim, launcher_of: Callable[[str], Launcher]) -> None:
    """To the answer. Raises Cancelled, LeaseLost, AutosyncError."""
    store = DatabaseStore(database, held.job_id, held.fence)
    store.end_if_paused()
    if held.fence > MOST_CLAIMS and held.fence > MOST_CLAIMS + len(store.trials()):
        raise _keeps_dying(held)
    with database.reading() as session:
        request = load_request(session, held.job_id)
    launcher = reporting_waits(
        launcher_of(request.launcher),
        lambda message: store.report(TuningEvent("waiting", message)),
    )
    request = with_measured_costs(request, store, launcher)
    request = with_measured_kernels(request, store, launcher)
    outcome = run_tuning(request, store, launcher)
    ran_on = ", ".join(dict.fromkeys(trial.launcher for trial in store.trials()))
    job_queue.finish(database, held, outcome_row(held.job_id, request, outcome, ran_on))
    log.info("tuning %s: finished", held.job_id)


def _train(database: Database, held: Claim) -> None:
    """To the next version of the simulator. Raises Cancelled, LeaseLost, AutosyncError."""
    from autosync.api.engine.version_training import run_training  # loads what trains

    if held.fence > MOST_TRAINING_CLAIMS:
        raise _keeps_dying(held)
    run_training(database, held)


def run_tuning(request: TuningRequest, store: DatabaseStore, launcher: Launcher) -> Outcome:
    """Tune; progress goes to the store as it happens."""
    with store.database.reading() as session:
        simulator = simulator_of(session, request.simulator, request.simulator_version)
    return tune(
        request.domain,
        request.searched,
        lambda: launcher.open(request.workload),
        store,
        simulator,
        request.settings,
        store.report,
        stop=store.out_of_time,
        earlier=request.earlier,
    )


def _keeps_dying(held: Claim) -> AutosyncError:
    return AutosyncError(
        f"the {held.kind} was claimed {held.fence} times and never came to its end.",
        thing=held.kind,
        value=held.job_id,
        remedy="Its worker keeps dying: look at the worker's log and at free memory.",
    )


def _fail(database: Database, held: Claim, error: str, reason: EndReason | None) -> None:
    """What is to end anyhow did not fail: its error may come of that. Raises Cancelled."""
    if reason is not None:
        raise Cancelled(reason)
    job_queue.fail(database, held, error)
