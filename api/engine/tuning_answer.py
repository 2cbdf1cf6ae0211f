"""From what a tuning found to the row of its answer, with the bundle that is shipped."""

from autosync.api.db.tables import OutcomeRow
from autosync.api.engine.tuning_request import TuningRequest
from autosync.bundle import Bundle
from autosync.documents import content_hash, to_json
from autosync.search.loop.outcome import Outcome, shipped_bundle


def outcome_row(
    tuning_id: str, request: TuningRequest, outcome: Outcome, ran_on: str = ""
) -> OutcomeRow:
    """Its strategy was proposed, so the database has it. ran_on: where trials really ran (`auto`
    names no place)."""
    from autosync.simulator.limit import iteration_limit  # loads numba

    return OutcomeRow(
        tuning_id=tuning_id,
        strategy_hash=content_hash(outcome.best.strategy),
        best_seconds=outcome.best_seconds,
        ddp_seconds=outcome.ddp_seconds,
        baseline=outcome.baseline.origin,
        speedup=outcome.speedup,
        speedup_low=outcome.speedup_low,
        speedup_high=outcome.speedup_high,
        repeats=outcome.repeats,
        keep_ddp=outcome.keep_ddp,
        limit_seconds=iteration_limit(request.domain, request.space).seconds,
        bundle=to_json(best_bundle(request, outcome, ran_on or request.launcher)),
    )


def best_bundle(request: TuningRequest, outcome: Outcome, ran_on: str) -> Bundle:
    where = measured_on(ran_on, request.byte_scale, request.time_scale)
    return shipped_bundle(outcome, request.domain, where)


def measured_on(launcher: str, byte_scale: float, time_scale: float) -> str:
    """Where trials ran, in the words of a bundle's evidence."""
    return f"{launcher}, byte scale {byte_scale:g}, time scale {time_scale:g}"
