"""The fastest measured strategy that each other framework can run, from its settings alone."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain
from autosync.api.db.lookup import stored
from autosync.api.db.tables import StrategyRow, TuningRow
from autosync.api.views.dashboard.strategy_labels import (
    StrategyLabel,
    remembered,
    strategy_labels,
)
from autosync.api.views.rankings import ranked_strategies
from autosync.api.views.tuning_schemas import RankedStrategy
from autosync.documents import from_json
from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.exports import settings_for
from autosync.exports.settings import TITLES, FrameworkName
from autosync.strategy import Strategy

LOOKED_AT = 100
"""The fastest strategies of a tuning, which are tried with each framework."""
OTHERS = tuple(name for name in TITLES if name not in ("autosync", "nccl"))


@dataclass(frozen=True, slots=True)
class FrameworkAnswer:
    """looked_at: how many strategies, the fastest of the tuning. row, label: None where it can run
    none of these. deviations: what the framework does otherwise than the measured strategy."""

    framework: FrameworkName
    title: str
    looked_at: int
    row: RankedStrategy | None = None
    label: StrategyLabel | None = None
    deviations: tuple[str, ...] = ()


_KNOWN: dict[tuple[str, tuple[str, ...]], dict[FrameworkName, tuple[str, tuple[str, ...]]]] = {}


def framework_answers(session: Session, tuning_id: str) -> list[FrameworkAnswer]:
    """One of each framework, among the LOOKED_AT fastest measured; raises NotFound."""
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    ranked = ranked_strategies(session, tuning_id, LOOKED_AT).items
    rows = {row.strategy_id: row for row in ranked if row.step_seconds is not None}
    found = remembered(
        _KNOWN,
        (tuning_id, tuple(rows)),
        lambda: _fastest(session, load_domain(session, tuning.domain_id), list(rows)),
    )
    labels = strategy_labels(session, [key for key, _ in found.values()])
    answers = []
    for name in OTHERS:
        if name in found:
            key, deviations = found[name]
            told = rows[key], labels[key], deviations
            answer = FrameworkAnswer(name, TITLES[name], len(rows), *told)
        else:
            answer = FrameworkAnswer(name, TITLES[name], len(rows))
        answers.append(answer)
    return answers


def _fastest(
    session: Session, domain: Domain, strategy_ids: list[str]
) -> dict[FrameworkName, tuple[str, tuple[str, ...]]]:
    """Of each framework the first strategy that it can run, with the deviations.

    strategy_ids: the fastest first.
    """
    found: dict[FrameworkName, tuple[str, tuple[str, ...]]] = {}
    for key in strategy_ids:
        try:
            strategy = _strategy(session, key)
        except AutosyncError:  # an earlier version stored it, and this one refuses it
            continue
        for name in OTHERS:
            if name not in found:
                try:
                    settings = settings_for(name, strategy, domain)
                except AutosyncError:  # this framework cannot run this strategy
                    continue
                found[name] = key, settings.deviations
        if len(found) == len(OTHERS):
            break
    return found


def _strategy(session: Session, strategy_id: str) -> Strategy:
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    return from_json(Strategy, session.scalars(query.limit(1)).one())
