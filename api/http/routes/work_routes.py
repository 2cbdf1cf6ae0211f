"""What a worker without access to the database asks of the service: a tuning to work on, and to
store what it measures. Needs a key of scope `worker`."""

import base64
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from sqlalchemy import select

from autosync.api.db.lookup import stored
from autosync.api.db.tables import ProposalRow, TuningRow
from autosync.api.engine import job_queue
from autosync.api.engine.database_store import DatabaseStore, check_fence, next_part
from autosync.api.engine.job_queue import Abilities, Claim
from autosync.api.engine.simulator_store import trained_files
from autosync.api.engine.tuning_answer import TuningAnswer
from autosync.api.engine.work_queue import DatabaseQueue
from autosync.api.http.access.guard import NEEDS_WORKER
from autosync.api.http.dependencies import Body, DatabaseDep, Id, Reading
from autosync.api.http.openapi import document_answer, posted, refusals
from autosync.api.views.work_schemas import (
    ClaimedTuning,
    ClaimingWorker,
    EarlierWork,
    Failure,
    GivenUp,
    HeldClaim,
    LivingWorker,
    Progress,
    ProposedTrials,
    Renewal,
    Spent,
    TrainedFiles,
)
from autosync.cancellation import Cancelled
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.environment import own_version
from autosync.errors import InvalidInput, NotSupported
from autosync.search.loop.outcome import TuningEvent
from autosync.trials.contract import TrialResult

router = APIRouter(prefix="/v1/queue", tags=["work"], dependencies=[NEEDS_WORKER])
CLAIMED = "/claims/{tuning_id}/{fence}"
JSON = "application/json"
WORK = document_answer("TuningRequest", "What to do.")
EARLIER = document_answer("EarlierWork", "The next proposals and trials; none behind the last.")
Fence = Annotated[int, Path(ge=0, lt=2**53, description="The number of the claim.")]
First = Annotated[int, Query(ge=0, lt=2**31, description="The number of the first, from 0.")]


def named_claim(tuning_id: Id, fence: Fence) -> Claim:
    return Claim(tuning_id, fence)


NamedClaim = Annotated[Claim, Depends(named_claim)]


def held_claim(named: NamedClaim, database: DatabaseDep) -> Claim:
    """
    Raises:
        NotFound: no such tuning. LeaseLost: the claim does not hold any longer.
    """
    with database.reading() as session:
        check_fence(stored(session, TuningRow, named.job_id, "tuning"), named.fence)
    return named


HeldClaimDep = Annotated[Claim, Depends(held_claim)]
REFUSED = refusals(404, 410)


@router.put("/workers", status_code=204, responses=refusals(409))
def put_worker(body: LivingWorker, database: DatabaseDep) -> None:
    """Say that a worker lives, for as long as its lease."""
    _refuse_other_version(body.version)
    DatabaseQueue(database).register(body.worker, body.lease_seconds, body.gpus)


@router.delete("/workers/{worker}", status_code=204)
def delete_worker(worker: Id, database: DatabaseDep) -> None:
    """It has ended."""
    DatabaseQueue(database).unregister(worker)


@router.post("/claims", responses=refusals(409))
def post_claim(body: ClaimingWorker, database: DatabaseDep) -> ClaimedTuning | None:
    """Take the tuning whose turn it is, under a lease; null where none waits that the worker can
    run."""
    _refuse_other_version(body.version)
    can = Abilities(tuple(body.launchers), body.gpus)
    held = DatabaseQueue(database).claim(body.worker, body.lease_seconds, can)
    return None if held is None else ClaimedTuning(tuning_id=held.job_id, fence=held.fence)


@router.get(CLAIMED)
def get_claim(named: NamedClaim, database: DatabaseDep) -> HeldClaim:
    """Whether the work goes on."""
    return HeldClaim(reason=job_queue.reason_to_end(database, named))


@router.post(CLAIMED + "/renewal", responses=refusals(409))
def post_renewal(named: NamedClaim, body: Renewal, database: DatabaseDep) -> HeldClaim:
    """Renew the lease. Where it ends, another worker goes on with the tuning."""
    _refuse_other_version(body.version)
    holds = job_queue.heartbeat(database, named, body.lease_seconds)
    return HeldClaim(reason=None if holds else "lost")


@router.get(
    CLAIMED + "/work",
    response_class=Response,
    responses={**WORK, **refusals(404, 409, 410)},
)
def get_work(held: HeldClaimDep, database: DatabaseDep) -> Response:
    """What to do."""
    return Response(to_json(DatabaseQueue(database).request(held)), media_type=JSON)


@router.get(
    CLAIMED + "/trials",
    response_class=Response,
    responses={**EARLIER, **REFUSED},
)
def get_trials(held: HeldClaimDep, database: DatabaseDep, first: First = 0) -> Response:
    """What was proposed and measured before, in parts: as many of both from the first on as make no
    large answer."""
    with database.reading() as session:
        most, _ = next_part(session, held.job_id, first)
    store = DatabaseQueue(database).store(held)
    found = EarlierWork(tuple(store.proposals(first, most)), tuple(store.trials(first, most)))
    return Response(to_json(found), media_type=JSON)


@router.get(CLAIMED + "/simulator", responses=REFUSED)
def get_simulator(held: HeldClaimDep, session: Reading) -> TrainedFiles | None:
    """The trained simulator that predicts; null where it comes with every installation."""
    tuning = session.get_one(TuningRow, held.job_id)
    files = trained_files(session, tuning.simulator, tuning.simulator_version)
    if files is None:
        return None
    name, card, weights = files
    return TrainedFiles(name=name, card=card, weights=base64.b64encode(weights).decode())


@router.get(CLAIMED + "/time", responses=REFUSED)
def get_time(held: HeldClaimDep, database: DatabaseDep) -> Spent:
    """How long workers have had the tuning, and may have it."""
    return Spent.model_validate(DatabaseQueue(database).store(held).time_spent())


@router.post(
    CLAIMED + "/proposals", responses=REFUSED, openapi_extra=posted("ProposedTrials", JSON)
)
def post_proposals(held: HeldClaimDep, body: Body, database: DatabaseDep) -> HeldClaim:
    """Store what is to be measured next; a key that was stored before is left alone."""
    proposed = from_json(ProposedTrials, body, "body", HOW)
    return _written(held, database, lambda store: store.propose(proposed.proposals))


@router.post(CLAIMED + "/trials", responses=REFUSED, openapi_extra=posted("TrialResult", JSON))
def post_trial(held: HeldClaimDep, body: Body, database: DatabaseDep) -> HeldClaim:
    """Store what was measured of a proposal. Sent twice, it is stored once."""
    result = from_json(TrialResult, body, "body", HOW)
    return _written(held, database, lambda store: store.record(result, again=True))


@router.post(CLAIMED + "/events", responses=REFUSED)
def post_event(held: HeldClaimDep, body: Progress, database: DatabaseDep) -> HeldClaim:
    """Tell how far it is."""
    event = TuningEvent(body.kind, body.message, body.done, body.total, body.best_seconds)
    return _written(held, database, lambda store: store.report(event))


@router.put(CLAIMED + "/domain", responses=REFUSED, openapi_extra=posted("Domain", JSON))
def put_domain(held: HeldClaimDep, body: Body, database: DatabaseDep) -> HeldClaim:
    """The domain with what the worker measured of it, before the search."""
    domain = from_json(Domain, body, "body", HOW)
    return _written(held, database, lambda store: store.use_domain(domain))


@router.post(CLAIMED + "/answer", responses=REFUSED, openapi_extra=posted("TuningAnswer", JSON))
def post_answer(held: HeldClaimDep, body: Body, database: DatabaseDep) -> HeldClaim:
    """The end of the tuning, with its bundle."""
    answer = from_json(TuningAnswer, body, "body", HOW)
    proposed = select(ProposalRow.key).where(
        ProposalRow.tuning_id == held.job_id, ProposalRow.strategy_hash == answer.strategy_hash
    )
    with database.reading() as session:
        known = session.scalars(proposed).first()
    if known is None:
        raise InvalidInput(
            "the answer's strategy is no proposal of this tuning.",
            thing="bundle.strategy",
            value=answer.bundle.strategy.name,
            remedy="Answer with a strategy that was proposed and measured.",
        )
    DatabaseQueue(database).finish(held, answer)
    return HeldClaim(reason=None)


@router.post(CLAIMED + "/failure", responses=REFUSED)
def post_failure(held: HeldClaimDep, body: Failure, database: DatabaseDep) -> HeldClaim:
    """The tuning ends with this error."""
    job_queue.fail(database, held, body.error)
    return HeldClaim(reason=None)


@router.post(CLAIMED + "/end")
def post_end(named: NamedClaim, body: GivenUp, database: DatabaseDep) -> HeldClaim:
    """Give the work up, for a reason that was told or since the worker stops: the tuning goes back
    into the queue, or ends where somebody cancelled it."""
    job_queue.give_up(database, named, body.reason)
    return HeldClaim(reason=body.reason)


HOW = "A worker of the service's own version sends what is right: upgrade it."


def _written(
    held: Claim, database: DatabaseDep, write: Callable[[DatabaseStore], None]
) -> HeldClaim:
    try:
        write(DatabaseQueue(database).store(held))
    except Cancelled as ended:  # with what was sent stored
        return HeldClaim.model_validate({"reason": ended.reason})
    return HeldClaim(reason=None)


def _refuse_other_version(version: str) -> None:
    if version != own_version():
        raise NotSupported(
            f"the worker has autosync {version[:80]}, and the service {own_version()}.",
            thing="version",
            value=version[:80],
            remedy=f"Install autosync {own_version()} where the worker runs.",
        )
