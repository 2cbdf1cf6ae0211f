"""A tuning request into the queue, as a row, and out of it again."""

import hashlib
import uuid
from dataclasses import dataclass
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import cluster_row, domain_rows, insert_rows, load_domain
from autosync.api.db.tables import TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.registry import LEARNED
from autosync.api.engine.request_checks import check_request
from autosync.api.engine.service_limits import (
    UNLIMITED,
    ServiceLimits,
    TryLater,
    check_settings,
    how_to_raise,
)
from autosync.api.engine.simulator_store import lock_simulator, lock_version_in_use
from autosync.api.engine.tuning_request import TuningRequest
from autosync.documents import from_json, to_json
from autosync.errors import NotSupported
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.trials.request_names import REAL_CLUSTERS, ComputeDevice, ComputeKind

QUEUE_RETRY_SECONDS = 60.0
"""Until a client whose queue is full may try again."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Who asks over HTTP. idempotency_key: a request that comes again under it is the same one,
    by the digest of what it asks for."""

    client: str
    limits: ServiceLimits
    idempotency_key: str | None = None
    digest: str | None = None


def enqueue(
    database: Database, request: TuningRequest, submission: Submission | None = None
) -> str:
    """Store the request and put it into the queue; the tuning's id.

    submission: None where the operator asks, for whom there are no limits.

    Raises:
        InvalidInput, NotSupported: as `check_request`, `check_settings` and `submitted_before`.
        NotFound: no such simulator.
        TryLater: too many tunings of the client wait already.
    """
    if submission is not None:
        check_settings(request.settings, request.domain.world_size, submission.limits)
    check_request(request)
    columns = _columns(request, submission)
    # made before the database is locked
    cluster = cluster_row(request.domain.cluster)
    documents = (cluster, *domain_rows(request.domain))
    with database.writing() as session:
        if submission is not None:
            job_queue.lock_client(session, submission.client)
            if (before := submitted_before(session, submission)) is not None:
                return before
            check_queue(session, submission.client, submission.limits)
        simulator = lock_simulator(session, request.simulator)
        insert_rows(session, documents)
        tuning_id = uuid.uuid4().hex
        job_queue.insert(
            session,
            id=tuning_id,
            cluster_id=cluster.id,
            simulator=simulator,
            simulator_version=lock_version_in_use(session) if simulator == LEARNED else None,
            **columns,
        )
    return tuning_id


def submitted_before(session: Session, submission: Submission) -> str | None:
    """The tuning that the client asked for under this idempotency key; None where it gave none, or
    none before.

    Raises:
        NotSupported: it asked for another tuning then.
    """
    if submission.idempotency_key is None:
        return None
    row = session.execute(
        select(TuningRow.id, TuningRow.request_digest).where(
            TuningRow.client == submission.client,
            TuningRow.idempotency_key == submission.idempotency_key,
        )
    ).first()
    if row is not None and row.request_digest != submission.digest:
        raise NotSupported(
            f"this Idempotency-Key was given to tuning {row.id}, for another request.",
            thing="Idempotency-Key",
            value=submission.idempotency_key,
            remedy="Send the same body, or another key: one a request.",
        )
    return None if row is None else str(row.id)


def load_request(session: Session, tuning_id: str) -> TuningRequest:
    """What the tuning was asked to do, on the domain it has come to."""
    row = session.get_one(TuningRow, tuning_id)
    return TuningRequest(
        domain=load_domain(session, row.domain_id),
        settings=from_json(Settings, row.settings),
        space=from_json(Space, row.space),
        simulator=row.simulator,
        simulator_version=row.simulator_version,
        launcher=row.launcher,
        byte_scale=row.byte_scale,
        time_scale=row.time_scale,
        compute=cast(ComputeKind, row.compute),
        device=cast(ComputeDevice, row.compute_device),
        earlier=None if row.earlier is None else from_json(EarlierTrials, row.earlier),
    )


def _columns(request: TuningRequest, submission: Submission | None) -> dict[str, object]:
    asked: dict[str, object] = {
        "domain_id": request.domain.id,
        "hosts": _hosts(request),
        "launcher": request.launcher,
        "byte_scale": request.byte_scale,
        "time_scale": request.time_scale,
        "compute": request.compute,
        "compute_device": request.device,
        "settings": to_json(request.settings),
        "space": to_json(request.space),
        "earlier": None if request.earlier is None else to_json(request.earlier),
    }
    if submission is not None:
        asked |= {
            "client": submission.client,
            "idempotency_key": submission.idempotency_key,
            "request_digest": submission.digest,
            "limit_seconds": None
            if submission.limits == UNLIMITED
            else 60.0 * submission.limits.minutes,
        }
    return asked


def _hosts(request: TuningRequest) -> str:
    """A digest of the hosts that trials run on, where the launcher goes to the cluster's own; empty
    where trials run on the worker's machine."""
    if request.launcher not in REAL_CLUSTERS:
        return ""
    hosts = sorted(node.address for node in request.domain.cluster.nodes)
    return hashlib.sha256("\n".join(hosts).encode()).hexdigest()[:32]


def check_queue(session: Session, client: str, limits: ServiceLimits) -> None:
    """Whether one more tuning of the client may wait; `job_queue.lock_client` goes before. Raises
    TryLater."""
    waiting, most = job_queue.waiting_of(session, client), limits.queued
    if waiting >= most:
        raise TryLater(
            f"{waiting} of your tunings wait for a worker or are paused; this service keeps {most} "
            "of a client.",
            thing="queued",
            remedy=f"Wait until some have begun, or cancel some. {how_to_raise('queued')}",
            retry_seconds=QUEUE_RETRY_SECONDS,
        )
