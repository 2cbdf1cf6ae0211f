"""A worker's queue at a service: tunings are claimed, and what they measure is stored, by REST over
the worker's own outbound connection. It needs no database, and nobody needs to reach the worker."""

import base64
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx

from autosync.api.client.rest_client import Client
from autosync.api.client.service_connection import ServiceConnection
from autosync.api.client.service_errors import ServiceError, ServiceUnreachable
from autosync.api.engine.database_store import LeaseLost, TimeSpent, clean
from autosync.api.engine.job_queue import Abilities, Claim
from autosync.api.engine.leases import EndReason, ServiceAway
from autosync.api.engine.registry import simulator_named
from autosync.api.engine.simulator_store import restored
from autosync.api.engine.tuning_answer import TuningAnswer
from autosync.api.engine.tuning_request import TuningRequest
from autosync.api.views.work_schemas import (
    LONGEST_TEXT,
    ClaimedTuning,
    EarlierWork,
    HeldClaim,
    LivingWorker,
    ProposedTrials,
    Spent,
    TrainedFiles,
)
from autosync.cancellation import Cancelled, check_cancelled
from autosync.documents import to_data, to_json
from autosync.domain import Domain
from autosync.environment import own_version
from autosync.search.loop.outcome import TuningEvent
from autosync.search.loop.tuning_store import MemoryStore, Proposal
from autosync.simulator.simulator_contract import Simulator
from autosync.trials.contract import TrialResult

LOST = 410
TEMPORARY = (429, 502, 503, 504)
"""Statuses with which a service, or a proxy before it, asks to come again."""
ATTEMPTS = 7
"""Of what must not be lost, with 16 s of pauses between: as long as a lease."""
WATCH_TIMEOUT_SECONDS = 5.0
"""Of requests that renew a lease or look at a claim: they come again soon."""
LOOK_SECONDS = 1.0
SLEEP_SECONDS = 0.05

log = logging.getLogger(__name__)


def service_client(
    address: str, token: str | None = None, transport: httpx.BaseTransport | None = None
) -> Client:
    """As `Client`, but its pauses end where the work is cancelled."""
    return Client(address, token, attempts=ATTEMPTS, sleep=_sleep, transport=transport)


class ServiceQueue:
    """Implements `work_queue.WorkQueue`. What the service refuses is raised as `ServiceError`."""

    look_seconds = LOOK_SECONDS

    def __init__(self, client: Client):
        self.connection = client.connection

    def register(self, worker: str, lease_seconds: float, gpus: int) -> None:
        body = _living(worker, lease_seconds, gpus)
        self._watch("PUT", "/v1/queue/workers", json=body)

    def unregister(self, worker: str) -> None:
        self._watch("DELETE", f"/v1/queue/workers/{quote(worker, safe='')}")

    def claim(self, worker: str, lease_seconds: float, can: Abilities) -> Claim | None:
        body = {**_living(worker, lease_seconds, can.gpus), "launchers": [*can.launchers]}
        # sent once: a claim whose answer is lost ends by its lease
        answer = self._watch("POST", "/v1/queue/claims", json=body)
        found = self.connection.parsed(answer, ClaimedTuning | None)  # type: ignore[arg-type]  # a union is no type
        return None if found is None else Claim(found.tuning_id, found.fence)

    def renew(self, held: Claim, lease_seconds: float) -> bool:
        body = {"version": own_version(), "lease_seconds": lease_seconds}
        return self._reason("POST", _path(held, "/renewal"), json=body) is None

    def reason_to_end(self, held: Claim) -> EndReason | None:
        return self._reason("GET", _path(held))

    def give_up(self, held: Claim, reason: EndReason) -> None:
        self._reason("POST", _path(held, "/end"), json={"reason": reason})

    def fail(self, held: Claim, error: str) -> None:
        body = {"error": clean(error)[-LONGEST_TEXT:]}
        send(self.connection, "POST", _path(held, "/failure"), json=body)

    def finish(self, held: Claim, answer: TuningAnswer) -> None:
        send(self.connection, "POST", _path(held, "/answer"), content=to_json(answer))

    def request(self, held: Claim) -> TuningRequest:
        answer = send(self.connection, "GET", _path(held, "/work"))
        return self.connection.parsed(answer, TuningRequest)

    def simulator(self, held: Claim, request: TuningRequest) -> Simulator:
        answer = send(self.connection, "GET", _path(held, "/simulator"))
        files = self.connection.parsed(answer, TrainedFiles | None)  # type: ignore[arg-type]  # as above
        if files is None:
            return simulator_named(request.simulator)
        return restored(files.name, files.card, base64.b64decode(files.weights))

    def store(self, held: Claim) -> "ServiceStore":
        known = MemoryStore()
        while True:
            params = {"first": len(known.proposals())}
            answer = send(self.connection, "GET", _path(held, "/trials"), params=params)
            part = self.connection.parsed(answer, EarlierWork)
            if not part.proposals:  # each trial is one of a proposal: there are no more of them
                return ServiceStore(self.connection, held, known)
            known.propose(part.proposals)
            for result in part.trials:
                known.record(result)

    def _reason(self, method: str, path: str, **request: Any) -> EndReason | None:
        """Where the service lets this worker in no longer, its claims are lost to it."""
        try:
            answer = self._watch(method, path, **request)
        except ServiceError as refusal:
            log.warning("%s", refusal)
            return "lost"
        return self.connection.parsed(answer, HeldClaim).reason

    def _watch(self, method: str, path: str, **request: Any) -> httpx.Response:
        once = replace(self.connection, attempts=1)
        return send(once, method, path, timeout=WATCH_TIMEOUT_SECONDS, **request)


class ServiceStore:
    """The memory of one tuning at a service, under a claim (`database_store.TuningStore`).

    known: what was proposed and measured before; under the claim this is the only one who writes,
    so that it need not be asked for again.
    """

    def __init__(self, connection: ServiceConnection, held: Claim, known: MemoryStore):
        self._connection = connection
        self._held = held
        self._known = known

    def proposals(self) -> Sequence[Proposal]:
        return self._known.proposals()

    def trials(self) -> Sequence[TrialResult]:
        return self._known.trials()

    def propose(self, proposals: Sequence[Proposal]) -> None:
        self._known.propose(proposals)
        self._write("POST", "/proposals", content=to_json(ProposedTrials(tuple(proposals))))

    def record(self, result: TrialResult) -> None:
        if result.error is not None:
            message, tail = clean(result.error.message), clean(result.error.stderr_tail)
            result = replace(result, error=replace(result.error, message=message, stderr_tail=tail))
        self._known.record(result)
        self._write("POST", "/trials", content=to_json(result))

    def end_if_paused(self) -> None:
        self.propose(())

    def time_spent(self) -> TimeSpent:
        answer = send(self._connection, "GET", _path(self._held, "/time"))
        spent = self._connection.parsed(answer, Spent)
        return TimeSpent(spent.held_seconds, spent.limit_seconds)

    def report(self, event: TuningEvent) -> None:
        body = {**to_data(event), "message": clean(event.message)[:LONGEST_TEXT]}
        self._write("POST", "/events", json=body)

    def use_domain(self, domain: Domain) -> None:
        self._write("PUT", "/domain", content=to_json(domain))

    def _write(self, method: str, path: str, **request: Any) -> None:
        answer = send(self._connection, method, _path(self._held, path), **request)
        if (reason := self._connection.parsed(answer, HeldClaim).reason) is not None:
            raise Cancelled(reason)


def send(connection: ServiceConnection, method: str, path: str, **request: Any) -> httpx.Response:
    """The answer. Every request of a worker may arrive twice.

    Raises:
        ServiceAway: the service does not answer, or asks to come again. LeaseLost: the claim does
            not hold any longer. ServiceError: the service refused.
    """
    try:
        return connection.send(method, path, repeatable=True, **request)
    except ServiceUnreachable as error:
        raise ServiceAway(error.message) from error
    except ServiceError as refusal:
        if refusal.status in TEMPORARY:
            raise ServiceAway(refusal.message) from refusal
        if refusal.status == LOST:
            raise LeaseLost(
                refusal.message, thing=refusal.thing, value=refusal.value, remedy=refusal.remedy
            ) from None
        raise


def _path(held: Claim, rest: str = "") -> str:
    return f"/v1/queue/claims/{held.job_id}/{held.fence}{rest}"


def _living(worker: str, lease_seconds: float, gpus: int) -> dict[str, Any]:
    living = LivingWorker(
        worker=worker, version=own_version(), lease_seconds=lease_seconds, gpus=gpus
    )
    return living.model_dump()


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        check_cancelled()
        time.sleep(min(rest, SLEEP_SECONDS))
