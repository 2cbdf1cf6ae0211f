"""The answer of a tuning: from what was found to the row that has it, with the bundle that is
shipped."""

from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from autosync.api.db.tables import OutcomeRow
from autosync.api.engine.tuning_request import TuningRequest
from autosync.bundle import Bundle
from autosync.documents import STRICT, content_hash, to_json
from autosync.search.loop.outcome import Outcome, shipped_bundle

Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class TuningAnswer:
    """As `Outcome` and `OutcomeRow` have it. bundle: with the strategy to use."""

    bundle: Bundle
    best_seconds: Seconds
    ddp_seconds: Seconds | None
    baseline: Annotated[str, Field(max_length=200)]
    speedup: Seconds
    speedup_low: Seconds
    speedup_high: Seconds
    repeats: Annotated[int, Field(ge=0, lt=2**31)]
    keep_ddp: bool
    limit_seconds: Annotated[float, Field(ge=0)] | None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    @property
    def strategy_hash(self) -> str:
        return content_hash(self.bundle.strategy)


def answer_of(request: TuningRequest, outcome: Outcome, ran_on: str = "") -> TuningAnswer:
    """ran_on: where trials really ran (`auto` names no place)."""
    from autosync.simulator.limit import iteration_limit  # loads numba

    where = measured_on(ran_on or request.launcher, request.byte_scale, request.time_scale)
    return TuningAnswer(
        bundle=shipped_bundle(outcome, request.domain, where),
        best_seconds=outcome.best_seconds,
        ddp_seconds=outcome.ddp_seconds,
        baseline=outcome.baseline.origin,
        speedup=outcome.speedup,
        speedup_low=outcome.speedup_low,
        speedup_high=outcome.speedup_high,
        repeats=outcome.repeats,
        keep_ddp=outcome.keep_ddp,
        limit_seconds=iteration_limit(request.domain, request.space).seconds,
    )


def outcome_row(tuning_id: str, answer: TuningAnswer) -> OutcomeRow:
    """Its strategy was proposed, so the database has it."""
    columns = {each.name: getattr(answer, each.name) for each in fields(answer)}
    columns["bundle"] = to_json(answer.bundle)
    return OutcomeRow(tuning_id=tuning_id, strategy_hash=answer.strategy_hash, **columns)


def measured_on(launcher: str, byte_scale: float, time_scale: float) -> str:
    """Where trials ran, in the words of a bundle's evidence."""
    return f"{launcher}, byte scale {byte_scale:g}, time scale {time_scale:g}"
