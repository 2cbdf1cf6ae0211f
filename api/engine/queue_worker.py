"""The worker: claims tunings, runs the tuning loop, renews its lease meanwhile."""

import logging
import os
import socket
import threading
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from autosync.api.db.database import Database, connect
from autosync.api.engine import tuning_queue
from autosync.api.engine.database_store import DatabaseStore, LeaseLost
from autosync.api.engine.domain_measurement import with_measured_costs, with_measured_kernels
from autosync.api.engine.leases import LEASE_SECONDS, ClaimedWork, EndReason, leased
from autosync.api.engine.registry import launcher_named
from autosync.api.engine.simulator_store import simulator_of
from autosync.api.engine.submission import load_request
from autosync.api.engine.training import training_queue
from autosync.api.engine.training.training_queue import TrainingClaim
from autosync.api.engine.tuning_answer import outcome_row
from autosync.api.engine.tuning_queue import Claim
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.engine.worker_registry import registered
from autosync.cancellation import Cancelled, check_cancelled
from autosync.errors import AutosyncError
from autosync.search.loop.outcome import Outcome, TuningEvent
from autosync.search.loop.tuning_loop import tune
from autosync.trials.contract import Launcher, reporting_waits

POLL_SECONDS = 1.0
MOST_CLAIMS = 50
"""A tuning that was started this often, beyond once for each of its trials, and never ended takes
its worker down with it."""
log = logging.getLogger(__name__)


def work(
    url: str,
    stop: threading.Event,
    once: bool = False,
    *,
    trains: bool = True,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Work off the queue until `stop`; with `once`, until nothing waits.

    When stopped in the middle of a tuning, breaks off what runs and gives the tuning back.
    trains: also the next versions of the simulator, one at a time, beside its tunings.
    """
    database = connect(url)
    name = f"{socket.gethostname()}:{os.getpid()}"
    try:
        with registered(database, name, lease_seconds):
            _work(database, name, stop, once, trains, launcher_of, lease_seconds)
    finally:
        database.close()


def _work(
    database: Database,
    name: str,
    stop: threading.Event,
    once: bool,
    trains: bool,
    launcher_of: Callable[[str], Launcher],
    lease_seconds: float,
) -> None:
    training: threading.Thread | None = None
    try:
        while not stop.is_set():
            try:
                held = tuning_queue.claim(database, name, lease_seconds)
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
    held = training_queue.claim_training(database, worker, lease_seconds)
    if held is None:
        return None

    def run() -> None:
        try:
            _run_training(database, held, stop, lease_seconds)
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
    held = training_queue.claim_training(database, worker, lease_seconds)
    if held is not None:
        _run_training(database, held, stop, lease_seconds)
    return held is not None


def _run_training(
    database: Database, held: TrainingClaim, stop: threading.Event, lease_seconds: float
) -> None:
    """To its end, or until the worker stops.

    Raises:
        OperationalError: the database is away.
    """
    from autosync.api.engine.training.version_training import run_training  # loads what trains

    log.info("training %s: claimed (claim %d)", held.training_id, held.fence)
    training = ClaimedWork(
        renew=lambda seconds: training_queue.renew_training(database, held, seconds),
        reason_to_end=lambda: "interrupted" if stop.is_set() else None,
        give_up=lambda reason: training_queue.release_training(database, held),
    )
    try:
        with leased(training, lease_seconds):
            run_training(database, held)
    except LeaseLost as error:
        log.warning("%s", error)
    except OperationalError:
        raise
    except Exception as error:  # process boundary: one broken training must not end the worker
        log.exception("training %s failed", held.training_id)
        training_queue.fail_training(database, held, f"{type(error).__name__}: {error}")


def run_claim(
    database: Database,
    held: Claim,
    stop: threading.Event,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Run one claimed tuning to one of its ends.

    Raises:
        OperationalError: the database is away.
    """

    def reason_to_end() -> EndReason | None:
        return "interrupted" if stop.is_set() else tuning_queue.reason_to_end(database, held)

    tuning = ClaimedWork(
        renew=lambda seconds: tuning_queue.heartbeat(database, held, seconds),
        reason_to_end=reason_to_end,
        give_up=lambda reason: tuning_queue.give_up(database, held, reason),
    )
    log.info("tuning %s: claimed (claim %d)", held.tuning_id, held.fence)
    try:
        with leased(tuning, lease_seconds):
            _run(database, held, launcher_of, reason_to_end)
    except LeaseLost as error:
        log.warning("%s", error)


def _run(
    database: Database,
    held: Claim,
    launcher_of: Callable[[str], Launcher],
    reason_to_end: Callable[[], EndReason | None],
) -> None:
    """To the answer, or to what went wrong. Raises Cancelled."""
    store = DatabaseStore(database, held.tuning_id, held.fence)
    try:
        check_cancelled()
        store.end_if_paused()
        if held.fence > MOST_CLAIMS and held.fence > MOST_CLAIMS + len(store.trials()):
            raise _keeps_dying(held)
        with database.reading() as session:
            request = load_request(session, held.tuning_id)
        launcher = reporting_waits(
            launcher_of(request.launcher),
            lambda message: store.report(TuningEvent("waiting", message)),
        )
        request = with_measured_costs(request, store, launcher)
        request = with_measured_kernels(request, store, launcher)
        outcome = run_tuning(request, store, launcher)
        ran_on = ", ".join(dict.fromkeys(trial.launcher for trial in store.trials()))
        tuning_queue.finish(database, held, outcome_row(held.tuning_id, request, outcome, ran_on))
        log.info("tuning %s: finished", held.tuning_id)
    except (LeaseLost, OperationalError):
        raise
    except AutosyncError as error:
        _fail(database, held, str(error), reason_to_end())
    except Exception as error:  # process boundary: one broken tuning must not end the worker
        log.exception("tuning %s failed", held.tuning_id)
        _fail(database, held, f"{type(error).__name__}: {error}", reason_to_end())


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
        f"the tuning was claimed {held.fence} times and never came to its end.",
        thing="tuning",
        value=held.tuning_id,
        remedy="Its worker keeps dying: look at the worker's log and at free memory.",
    )


def _fail(database: Database, held: Claim, error: str, reason: EndReason | None) -> None:
    """What is to end anyhow did not fail: its error may come of that. Raises Cancelled."""
    if reason is not None:
        raise Cancelled(reason)
    tuning_queue.fail(database, held, error)
