"""A tuning request into the queue, as a row, and out of it again."""

import uuid
from typing import cast

from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import load_domain, store_domain
from autosync.api.db.tables import TuningRow
from autosync.api.engine import tuning_queue
from autosync.api.engine.registry import TRAINED
from autosync.api.engine.request_checks import check_request
from autosync.api.engine.simulator_store import lock_simulator
from autosync.api.engine.simulator_versions import version_in_use
from autosync.api.engine.tuning_request import TuningRequest
from autosync.documents import from_json, to_json
from autosync.search.loop.settings import Settings
from autosync.search.space import Space
from autosync.trials.request_names import ComputeDevice, ComputeKind


def enqueue(database: Database, request: TuningRequest) -> str:
    """Store the request and put it into the queue; the tuning's id.

    Raises:
        InvalidInput, NotSupported: as `check_request`.
        NotFound: no such simulator.
    """
    check_request(request)
    tuning_id = uuid.uuid4().hex
    with database.writing() as session:
        simulator = lock_simulator(session, request.simulator, request.domain)
        tuning_queue.insert(
            session,
            id=tuning_id,
            domain_id=store_domain(session, request.domain),
            launcher=request.launcher,
            byte_scale=request.byte_scale,
            time_scale=request.time_scale,
            compute=request.compute,
            compute_device=request.device,
            simulator=simulator,
            simulator_version=version_in_use(session) if simulator in TRAINED else None,
            settings=to_json(request.settings),
            space=to_json(request.space),
        )
    return tuning_id


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
    )
