"""What leaves the database as a file of its own: bundles, and settings of other frameworks."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain, load_strategies
from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import FINAL, DomainRow, OutcomeRow, StrategyRow, TuningRow
from autosync.api.engine.database_store import (
    proposal_of,
    read_proposals,
    read_trials,
    trial_of,
)
from autosync.api.engine.tuning_answer import measured_on
from autosync.api.views.rankings import ddp_strategy, ranked_strategy
from autosync.api.views.tuning_schemas import RankedStrategy
from autosync.bundle import Evidence, make_bundle
from autosync.documents import from_json, to_json
from autosync.errors import NotSupported
from autosync.exports import settings_for
from autosync.exports.settings import FrameworkName
from autosync.search.loop.outcome import rank_measured
from autosync.strategy import Strategy


def bundle_document(session: Session, tuning_id: str, strategy_id: str | None = None) -> str:
    """The bundle of the tuning's answer, or of one of its strategies, as JSON.

    Raises:
        NotFound: no such tuning or strategy. NotSupported: there is no answer yet.
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    if strategy_id is not None:
        return _bundle_of(session, tuning, strategy_id)
    return _answer(session, tuning, "bundle").bundle


def settings_document(
    session: Session, tuning_id: str, framework: FrameworkName, strategy_id: str | None = None
) -> str:
    """The answer, or one of the tuning's strategies, as settings of a framework, as JSON.

    Raises:
        NotFound: no such tuning or strategy. NotSupported: there is no answer yet, or the
            framework cannot run the strategy; says why.
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    if strategy_id is None:
        row = session.get_one(StrategyRow, _answer(session, tuning, "settings").strategy_hash)
        strategy = from_json(Strategy, row.document)
    else:
        _entry(session, tuning, strategy_id)
        strategy = _strategy(session, strategy_id)
    domain = load_domain(session, tuning.domain_id)
    return to_json(settings_for(framework, strategy, domain))


def domain_document(session: Session, tuning_id: str) -> str:
    """What the tuning is about, as JSON; raises NotFound."""
    return to_json(load_domain(session, stored(session, TuningRow, tuning_id, "tuning").domain_id))


def measured_document(session: Session, tuning_id: str) -> str:
    """What the tuning has measured, as `EarlierTrials` in JSON; raises NotFound."""
    from autosync.search.loop.earlier_trials import trials_of  # loads numba

    tuning = stored(session, TuningRow, tuning_id, "tuning")
    rows = read_proposals(session, tuning.id)
    strategies = load_strategies(session, {row.strategy_hash for row in rows})
    proposals = [proposal_of(row, strategies[row.strategy_hash]) for row in rows]
    trials = [trial_of(row) for row in read_trials(session, tuning.id)]
    batches = stored(session, DomainRow, tuning.domain_id, "domain").accumulate
    return to_json(trials_of(rank_measured(proposals, trials), batches))


def _answer(session: Session, tuning: TuningRow, thing: str) -> OutcomeRow:
    outcome = session.get(OutcomeRow, tuning.id)
    if outcome is None:
        goes_on = "Wait until it has finished"
        if tuning.state in FINAL:
            goes_on = f"Let it go on with `autosync tune --resume {tuning.id[:8]}`"
        raise NotSupported(
            f"tuning {tuning.id} is {tuning.state} and has no confirmed answer.",
            thing=thing,
            value=tuning.state,
            remedy=f"{goes_on}, or ask for one of its strategies (`autosync export {tuning.id[:8]} "
            "--strategy ID`, or ?strategy=ID).",
        )
    return outcome


def _entry(session: Session, tuning: TuningRow, strategy_id: str) -> RankedStrategy:
    return found(
        ranked_strategy(session, tuning.id, strategy_id) if strategy_id.isalnum() else None,
        thing="strategy",
        key=strategy_id,
        remedy=f"GET /v1/tunings/{tuning.id}/strategies lists them.",
        message=f"tuning {tuning.id} has no strategy {strategy_id[:80]!r}.",
    )


def _strategy(session: Session, strategy_id: str) -> Strategy:
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    return from_json(Strategy, session.scalars(query.limit(1)).one())


def _bundle_of(session: Session, tuning: TuningRow, strategy_id: str) -> str:
    entry = _entry(session, tuning, strategy_id)
    ddp = ddp_strategy(session, tuning.id)
    where = ", ".join(tuning.ran_on) or tuning.launcher
    domain = load_domain(session, tuning.domain_id)
    evidence = Evidence(
        predicted_seconds=entry.predicted_seconds,
        step_seconds=entry.step_seconds,
        ddp_step_seconds=None if ddp is None else ddp.step_seconds,
        measured_on=measured_on(where, tuning.byte_scale, tuning.time_scale),
        accumulate=domain.accumulate,
    )
    return to_json(make_bundle(_strategy(session, strategy_id), domain, evidence))
