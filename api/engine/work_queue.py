"""Where a worker takes its tunings from: the queue of a database, or a service before one."""

from typing import Protocol

from autosync.api.db.database import Database
from autosync.api.engine import job_queue, worker_registry
from autosync.api.engine.database_store import DatabaseStore, TuningStore
from autosync.api.engine.job_queue import Abilities, Claim
from autosync.api.engine.leases import EndReason
from autosync.api.engine.simulator_store import simulator_of
from autosync.api.engine.submission import load_request
from autosync.api.engine.tuning_answer import TuningAnswer, outcome_row
from autosync.api.engine.tuning_control import refuse_hopeless, use_readable_version
from autosync.api.engine.tuning_request import TuningRequest
from autosync.simulator.simulator_contract import Simulator


class WorkQueue(Protocol):
    """Each call may raise one of `leases.AWAY`; what writes under a claim that does not hold any
    longer raises LeaseLost.

    look_seconds: between two looks whether a claim still holds, at least.
    """

    look_seconds: float

    def register(self, worker: str, lease_seconds: float, gpus: int) -> None:
        """Say that the worker lives for as long as the lease."""
        ...

    def unregister(self, worker: str) -> None: ...

    def claim(self, worker: str, lease_seconds: float, can: Abilities) -> Claim | None:
        """A tuning to work on, if one waits that the worker can run."""
        ...

    def renew(self, held: Claim, lease_seconds: float) -> bool:
        """Whether the claim still holds."""
        ...

    def reason_to_end(self, held: Claim) -> EndReason | None: ...

    def give_up(self, held: Claim, reason: EndReason) -> None:
        """End the work before its answer. May be called twice."""
        ...

    def fail(self, held: Claim, error: str) -> None: ...

    def finish(self, held: Claim, answer: TuningAnswer) -> None: ...

    def request(self, held: Claim) -> TuningRequest:
        """Raises NotSupported, or what the service refused: the tuning was claimed too often."""
        ...

    def simulator(self, held: Claim, request: TuningRequest) -> Simulator:
        """The one that the tuning asks for."""
        ...

    def store(self, held: Claim) -> TuningStore: ...


class DatabaseQueue:
    look_seconds = 0.0

    def __init__(self, database: Database):
        self.database = database

    def register(self, worker: str, lease_seconds: float, gpus: int) -> None:
        worker_registry.register(self.database, worker, lease_seconds, gpus)

    def unregister(self, worker: str) -> None:
        worker_registry.unregister(self.database, worker)

    def claim(self, worker: str, lease_seconds: float, can: Abilities) -> Claim | None:
        return job_queue.claim(self.database, worker, lease_seconds, can=can)

    def renew(self, held: Claim, lease_seconds: float) -> bool:
        return job_queue.heartbeat(self.database, held, lease_seconds)

    def reason_to_end(self, held: Claim) -> EndReason | None:
        return job_queue.reason_to_end(self.database, held)

    def give_up(self, held: Claim, reason: EndReason) -> None:
        job_queue.give_up(self.database, held, reason)

    def fail(self, held: Claim, error: str) -> None:
        job_queue.fail(self.database, held, error)

    def finish(self, held: Claim, answer: TuningAnswer) -> None:
        job_queue.finish(self.database, held, outcome_row(held.job_id, answer))

    def request(self, held: Claim) -> TuningRequest:
        use_readable_version(self.database, held)
        with self.database.reading() as session:
            refuse_hopeless(session, held)
            return load_request(session, held.job_id)

    def simulator(self, held: Claim, request: TuningRequest) -> Simulator:
        with self.database.reading() as session:
            return simulator_of(session, request.simulator, request.simulator_version)

    def store(self, held: Claim) -> DatabaseStore:
        return DatabaseStore(self.database, held.job_id, held.fence)
