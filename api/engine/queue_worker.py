"""The worker: claims jobs, runs tunings and trainings, renews their leases meanwhile."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError

from autosync.api.db.database import Database, connect
from autosync.api.db.schema_migration import current_revision
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import LeaseLost, TuningStore
from autosync.api.engine.domain_measurement import with_measured_costs, with_measured_kernels
from autosync.api.engine.job_queue import Abilities, Claim
from autosync.api.engine.leases import AWAY, LEASE_SECONDS, ClaimedWork, EndReason, leased
from autosync.api.engine.registry import launcher_named, launchers_here
from autosync.api.engine.retention import prune
from autosync.api.engine.tuning_answer import answer_of
from autosync.api.engine.work_queue import DatabaseQueue, WorkQueue
from autosync.api.engine.worker_registry import registered, visible_gpus
from autosync.cancellation import Cancelled, check_cancelled
from autosync.errors import AutosyncError, NotSupported
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_loop import tune
from autosync.search.loop.tuning_store import Phase, Store
from autosync.trials.contract import Launcher, reporting_waits
from autosync.trials.request_names import LauncherName

POLL_SECONDS = 1.0
PRUNING_SECONDS = 3600.0
"""Between two looks for what is no longer kept."""
MOST_TRAINING_CLAIMS = 10
"""A training that was begun this often and never ended, as where its worker dies or is stopped, is
given up: the next one has its trials."""
SEARCH_SHARE = 0.75
"""Of a tuning's longest time: the rest is left for the confirmation, without which there is no
answer but DDP."""
log = logging.getLogger(__name__)


def work(
    url: str,
    stop: threading.Event,
    once: bool = False,
    *,
    trains: bool = True,
    keep_days: float | None = None,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    launchers: tuple[LauncherName, ...] | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Work off the queue of a database until `stop`; with `once`, until nothing waits.

    When stopped in the middle of a tuning, breaks off what runs and gives the tuning back.
    trains: also the next versions of the simulator, one at a time, beside its tunings. keep_days:
    between tunings, removes what ended longer ago (`retention`); None keeps all. launchers: takes
    tunings of these alone; by default of all that are set up here.

    Raises:
        NotSupported: the database was upgraded meanwhile.
    """
    database = connect(url)
    upkeep = Upkeep(database, this_worker(), stop, trains, keep_days, lease_seconds)
    try:
        work_off(
            DatabaseQueue(database),
            stop,
            once,
            launcher_of=launcher_of,
            launchers=launchers,
            lease_seconds=lease_seconds,
            upkeep=upkeep,
        )
    finally:
        database.close()


def work_off(
    queue: WorkQueue,
    stop: threading.Event,
    once: bool = False,
    *,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    launchers: tuple[LauncherName, ...] | None = None,
    lease_seconds: float = LEASE_SECONDS,
    upkeep: "Upkeep | None" = None,
) -> None:
    """As `work`, of any queue. upkeep: what the worker does besides; None: nothing.

    Raises:
        AutosyncError: the queue refuses this worker.
    """
    name = this_worker()
    can = Abilities(launchers_here() if launchers is None else launchers, visible_gpus())
    away = False
    with registered(queue, name, lease_seconds):
        try:
            while not stop.is_set():
                try:
                    if upkeep is not None:
                        upkeep.refuse_other_schema()
                        upkeep.prune_when_due()
                    held = queue.claim(name, lease_seconds, can)
                    away = False
                    if held is not None:
                        run_claim(queue, held, stop, launcher_of, lease_seconds)
                        continue
                    idle = upkeep is None or not upkeep.train_when_asked()
                    if once and idle:
                        return
                except AWAY as error:  # a claim ends by its lease
                    if not away:
                        log.warning("the queue does not answer, and is asked again: %s", error)
                    away = True
                stop.wait(max(POLL_SECONDS, queue.look_seconds))
        finally:
            if upkeep is not None:
                upkeep.close()


def this_worker() -> str:
    """The name of this process among workers."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass
class Upkeep:
    """What a worker of a database does between its tunings (`work` says when). revision: of the
    database's schema, when the worker began."""

    database: Database
    worker: str
    stop: threading.Event
    trains: bool
    keep_days: float | None
    lease_seconds: float
    training: threading.Thread | None = None
    prune_at: float = 0.0
    revision: str | None = None

    def refuse_other_schema(self) -> None:
        """Raises NotSupported: another version of AutoSync has upgraded the database, and this one
        would fail tunings that it cannot read. OperationalError: the database is away."""
        with self.database.reading() as session:
            revision = current_revision(session.connection())
        self.revision = self.revision or revision
        if revision != self.revision:
            self.stop.set()  # for a training beside, which would put what it learned into use
            raise NotSupported(
                f"the database has schema revision {revision}, and had {self.revision} when this "
                "worker began.",
                thing="database",
                value=revision,
                remedy="Install the version of AutoSync that upgraded it, and start the worker.",
            )

    def prune_when_due(self) -> None:
        """Raises OperationalError: the database is away."""
        if self.keep_days is not None and time.monotonic() >= self.prune_at:
            prune(self.database, self.keep_days, self.stop.is_set)
            self.prune_at = time.monotonic() + PRUNING_SECONDS

    def train_when_asked(self) -> bool:
        """Begin the training that waits, where none runs; whether one runs now."""
        if self.training is not None and not self.training.is_alive():
            self.training = None
        if self.trains and self.training is None:
            self.training = _begin_training(
                self.database, self.worker, self.stop, self.lease_seconds
            )
        return self.training is not None

    def close(self) -> None:
        if self.training is not None:
            self.training.join()


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
    held = job_queue.claim(database, worker, lease_seconds, kind="training")
    if held is not None:
        _run_training(database, held, stop, lease_seconds)
    return held is not None


def run_claim(
    queue: WorkQueue,
    held: Claim,
    stop: threading.Event,
    launcher_of: Callable[[str], Launcher] = launcher_named,
    lease_seconds: float = LEASE_SECONDS,
) -> None:
    """Run one claimed tuning to one of its ends: its answer, what went wrong, or a request to stop.

    Raises:
        OperationalError, ServiceAway: the database or the service is away.
    """
    _run(queue, held, stop, lease_seconds, lambda: _tune(queue, held, launcher_of))


def _run_training(
    database: Database, held: Claim, stop: threading.Event, lease_seconds: float
) -> None:
    """As `run_claim`, of a training."""
    queue = DatabaseQueue(database)
    _run(queue, held, stop, lease_seconds, lambda: _train(database, held))


def _run(
    queue: WorkQueue,
    held: Claim,
    stop: threading.Event,
    lease_seconds: float,
    run: Callable[[], None],
) -> None:
    looked_at = float("-inf")

    def reason_to_end() -> EndReason | None:
        return "interrupted" if stop.is_set() else queue.reason_to_end(held)

    def reason_when_due() -> EndReason | None:
        nonlocal looked_at
        now = time.monotonic()
        if not stop.is_set() and now - looked_at < queue.look_seconds:
            return None
        looked_at = now
        return reason_to_end()

    work = ClaimedWork(
        renew=lambda seconds: queue.renew(held, seconds),
        reason_to_end=reason_when_due,
        give_up=lambda reason: queue.give_up(held, reason),
    )
    log.info("%s %s: claimed (claim %d)", held.kind, held.job_id, held.fence)
    try:
        with leased(work, lease_seconds):
            try:
                check_cancelled()
                run()
            except (LeaseLost, *AWAY):
                raise
            except AutosyncError as error:
                _fail(queue, held, str(error), reason_to_end())
            except Exception as error:  # process boundary: one broken job must not end the worker
                log.exception("%s %s failed", held.kind, held.job_id)
                _fail(queue, held, f"{type(error).__name__}: {error}", reason_to_end())
    except LeaseLost as error:
        log.warning("%s", error)


def _tune(queue: WorkQueue, held: Claim, launcher_of: Callable[[str], Launcher]) -> None:
    """To the answer. Raises Cancelled, LeaseLost, AutosyncError."""
    store = queue.store(held)
    store.end_if_paused()
    request = queue.request(held)
    launcher = reporting_waits(
        launcher_of(launcher_begun_with(request.launcher, store)),
        lambda message: store.report(TuningEvent("waiting", message)),
    )
    request = with_measured_costs(request, store, launcher)
    request = with_measured_kernels(request, store, launcher)
    outcome = tune(
        request.domain,
        request.searched,
        lambda: launcher.open(request.workload),
        store,
        queue.simulator(held, request),
        request.settings,
        store.report,
        stop=TimeLimit(store),
        earlier=request.earlier,
    )
    ran_on = ", ".join(dict.fromkeys(trial.launcher for trial in store.trials()))
    queue.finish(held, answer_of(request, outcome, ran_on))
    log.info("tuning %s: finished", held.job_id)


def launcher_begun_with(asked: str, store: Store) -> str:
    """The launcher that goes on with a tuning: of `auto` the one that measured its trials so far.
    Trials over shaped links and over the loopback do not compare."""
    if asked != "auto":
        return asked
    measured = (trial for trial in store.trials() if trial.step_seconds is not None)
    kinds = (trial.launcher.partition(" ")[0] for trial in measured)
    return next((kind for kind in kinds if kind in ("testbed", "local")), asked)


class TimeLimit:
    """The rule by which a tuning stops (`tuning_loop.StopRule`): whether workers have spent on it
    what its operator allows a phase of it. The first time an event says so."""

    def __init__(self, store: TuningStore):
        self.store = store
        self.ended: set[Phase] = set()

    def __call__(self, phase: Phase) -> bool:
        spent, share = self.store.time_spent(), SEARCH_SHARE if phase == "search" else 1.0
        most = spent.limit_seconds
        if most is None or spent.held_seconds < share * most:
            return False
        if phase not in self.ended:
            self.ended.add(phase)
            minutes = f"{share * most / 60:g} of the {most / 60:g} minutes"
            message = f"{phase} ends: {minutes} that this service allows a tuning are over"
            self.store.report(TuningEvent("waiting", message))
        return True


def _train(database: Database, held: Claim) -> None:
    """To the next version of the simulator. Raises Cancelled, LeaseLost, AutosyncError."""
    from autosync.api.engine.version_training import run_training  # loads what trains

    if held.fence > MOST_TRAINING_CLAIMS:
        raise job_queue.keeps_dying(held)
    run_training(database, held)


def _fail(queue: WorkQueue, held: Claim, error: str, reason: EndReason | None) -> None:
    """What is to end anyhow did not fail: its error may come of that. Raises Cancelled."""
    if reason is not None:
        raise Cancelled(reason)
    queue.fail(held, error)
