"""Reading a tuning: its state, its ranked strategies and its trials. No documents are parsed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from autosync.api.db.database import now_seconds
from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import (
    STATES,
    ClusterRow,
    DomainRow,
    EventRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    StrategySummaryRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine.simulator_store import NAME_OF_VERSION
from autosync.api.views.paging import SortKey, check_state, sorted_page
from autosync.api.views.prediction_errors import PredictionErrors, interval, prediction_errors
from autosync.api.views.rankings import confirmed_spread, ddp_error_of, searched_words
from autosync.api.views.rankings import ranked_strategies as ranked_strategies
from autosync.api.views.schemas import columns_of
from autosync.api.views.time_left import TimeLeft
from autosync.api.views.tuning_schemas import (
    Trial,
    TrialDetail,
    Trials,
    Tuning,
    TuningProgress,
    TuningResult,
    Tunings,
)

LATEST_EVENTS = 500
"""Events from which the duration of a trial is estimated; a tuning may have tens of thousands."""
MOST_TAGS = 200
TUNING_SORTS = {
    "created": SortKey(TuningRow.created_at),
    "finished": SortKey(TuningRow.finished_at, nullable=True),
    "best_seconds": SortKey(TuningRow.best_seconds, nullable=True),
    "speedup": SortKey(OutcomeRow.speedup, nullable=True),
    "model": SortKey(GraphRow.name, str),
    "cluster": SortKey(ClusterRow.name, str),
    "state": SortKey(TuningRow.state, str),
}
TRIAL_SORTS = {
    "position": SortKey(TrialRow.position, int, unique=True),
    "step_seconds": SortKey(TrialRow.step_seconds, nullable=True),
    "predicted_seconds": SortKey(ProposalRow.predicted_seconds),
    "spread": SortKey(TrialRow.spread, nullable=True),
}


@dataclass(frozen=True, slots=True)
class TuningFilter:
    """Which tunings, and in which order. Empty fields take all.

    text: words in the names of model or cluster, in the note, in a tag, or the beginning of an id.
    simulator: name of the trained one that ranked, `version-N` for a version. archived: None takes
    both. prefix: of the id. recorded: the id of a strategy whose timeline it
    recorded. sort: one of TUNING_SORTS, with `-` before it for the largest first.
    """

    text: str = ""
    state: str = ""
    tag: str = ""
    graph_id: str = ""
    cluster_id: str = ""
    simulator: str = ""
    archived: bool | None = None
    prefix: str = ""
    recorded: str = ""
    sort: str = "-created"

    def __post_init__(self) -> None:
        check_state(self.state, STATES)

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        for column, value in (
            (TuningRow.state, self.state),
            (GraphRow.id, self.graph_id),
            (TuningRow.cluster_id, self.cluster_id),
        ):
            if value:
                yield column == value
        if self.archived is not None:
            yield TuningRow.archived.is_(self.archived)
        if self.tag:
            padded = " " + TuningRow.tags + " "  # LIKE of SQLite would take letters of either case
            yield func.replace(padded, f" {self.tag} ", "") != padded
        if self.simulator:
            by_name = TuningRow.simulator == self.simulator
            number = self.simulator.removeprefix(NAME_OF_VERSION.format(""))
            if number != self.simulator and number.isdecimal():
                yield by_name | (TuningRow.simulator_version == int(number))
            else:
                yield by_name
        if self.prefix:
            yield TuningRow.id.startswith(self.prefix, autoescape=True)
        if self.recorded:
            found_in = select(StrategySummaryRow.tuning_id).where(
                StrategySummaryRow.strategy_id == self.recorded, StrategySummaryRow.recorded
            )
            yield TuningRow.id.in_(found_in)
        for word in searched_words(self.text):
            said = func.lower(
                GraphRow.name + " " + ClusterRow.name + " " + TuningRow.note + " " + TuningRow.tags
            )
            begins = TuningRow.id.startswith(word, autoescape=True)
            yield said.contains(word, autoescape=True) | begins

    @property
    def needs_documents(self) -> bool:
        """Whether it looks at names of models and clusters, whose tables are joined then."""
        return bool(
            self.text or self.graph_id or self.sort.removeprefix("-") in ("model", "cluster")
        )


ALL = TuningFilter()


def tunings(
    session: Session, limit: int, cursor: str | None = None, wanted: TuningFilter = ALL
) -> Tunings:
    """A page of tunings, and how many there are in all. cursor: `next` of the page before.

    Raises:
        InvalidInput: there is no such sort, or the cursor is of another list.
    """

    def joined(query: Any) -> Any:
        if wanted.needs_documents:
            query = query.join(DomainRow, DomainRow.id == TuningRow.domain_id)
            query = query.join(GraphRow, GraphRow.id == DomainRow.graph_id)
            query = query.join(ClusterRow, ClusterRow.id == TuningRow.cluster_id)
        return query.where(*wanted.conditions())

    query = joined(select(TuningRow.id))
    if wanted.sort.endswith("speedup"):
        query = query.outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    rows, following = sorted_page(
        session, query, TUNING_SORTS, wanted.sort, TuningRow.id, limit, cursor
    )
    total = session.scalar(joined(select(func.count()).select_from(TuningRow))) or 0
    return Tunings(items=tunings_of(session, [row[0] for row in rows]), total=total, next=following)


def tags(session: Session) -> list[str]:
    """All that tunings have, up to those of MOST_TAGS tunings."""
    query = select(TuningRow.tags).where(TuningRow.tags != "").distinct().limit(MOST_TAGS)
    return sorted({tag for tags in session.scalars(query) for tag in tags.split()})


def tuning(session: Session, tuning_id: str) -> Tuning:
    """Raises NotFound."""
    rows = tunings_of(session, [tuning_id]) if tuning_id.isalnum() else []
    remedy = "GET /v1/tunings lists what there is."
    return found(rows[0] if rows else None, "tuning", tuning_id, remedy)


def tunings_of(session: Session, tuning_ids: Sequence[str]) -> list[Tuning]:
    """Those that there are, in the order of the ids."""
    rows = session.execute(_SUMMARY.where(TuningRow.id.in_(tuning_ids)))
    known = {summary.id: summary for summary in (_summary(row) for row in rows)}
    return [known[each] for each in tuning_ids if each in known]


_OWN = columns_of(TuningRow, Tuning) | {
    "graph_id": GraphRow.id,
    "graph": GraphRow.name,
    "batch_size": GraphRow.batch_size,
    "cluster_id": ClusterRow.id,
    "cluster": ClusterRow.name,
    "world_size": ClusterRow.world_size,
    "profile_source": DomainRow.profile_source,
    "accumulate": DomainRow.accumulate,
}
_PROGRESS = columns_of(TuningRow, TuningProgress) | {
    "trials": select(func.coalesce(func.max(TrialRow.position) + 1, 0))  # positions have no gaps
    .where(TrialRow.tuning_id == TuningRow.id)
    .scalar_subquery()
}
_RESULT = columns_of(OutcomeRow, TuningResult) | {
    "words": StrategyRow.words,
    "strategy_id": StrategyRow.strategy_id,
    "ddp_error": ddp_error_of(TuningRow.id),
    "spread": confirmed_spread(TuningRow.id),
}
"""Columns of an answer by the names of its fields; those of a list's rows are read alone, without
the objects of five tables for each."""
_SUMMARY = (
    select(*_OWN.values(), *_PROGRESS.values(), *_RESULT.values())
    .select_from(TuningRow)
    .join(DomainRow, DomainRow.id == TuningRow.domain_id)
    .join(GraphRow, GraphRow.id == DomainRow.graph_id)
    .join(ClusterRow, ClusterRow.id == TuningRow.cluster_id)
    .outerjoin(OutcomeRow, OutcomeRow.tuning_id == TuningRow.id)
    .outerjoin(StrategyRow, StrategyRow.hash == OutcomeRow.strategy_hash)
)


def _summary(row: Sequence[Any]) -> Tuning:
    """row: of `_SUMMARY`."""
    values = iter(row)
    own, progress, result = (
        {name: next(values) for name in names} for names in (_OWN, _PROGRESS, _RESULT)
    )
    return Tuning.model_validate(
        {
            **own,
            "settings": json.loads(own["settings"]),
            "space": json.loads(own["space"]).get("only", ""),
            "tags": own["tags"].split(),
            "progress": progress,
            "result": result if result["words"] is not None else None,
        }
    )


def time_left_words(session: Session, tuning: Tuning) -> str:
    """How long it still takes, as `TimeLeft` says it now."""
    left = TimeLeft(tuning.settings["budget"], tuning.settings["repeats"])
    query = select(EventRow.kind, EventRow.done, EventRow.total, EventRow.created_at)
    newest = query.where(EventRow.tuning_id == tuning.id).order_by(EventRow.id.desc())
    for row in reversed(session.execute(newest.limit(LATEST_EVENTS)).all()):
        left.see(*row)
    return left.words(session.scalars(select(now_seconds())).one())


def trials(
    session: Session,
    tuning_id: str,
    limit: int | None = None,
    cursor: str | None = None,
    sort: str = "position",
    *,
    strategy_id: str = "",
    failed: bool = False,
    phase: str = "",
    text: str = "",
) -> Trials:
    """Finished trials, oldest first. limit: how many, at most; by default all. cursor: `next` of
    the page before. sort: one of TRIAL_SORTS, with `-` for the largest first. strategy_id: only
    trials of this one. failed: only those that did. phase: only of this one. text: words in the
    strategy's description or in what proposed it.

    Raises:
        NotFound: no such tuning. InvalidInput: there is no such sort, or the cursor is of another
            list.
    """
    stored(session, TuningRow, tuning_id, "tuning")
    query = _TRIALS.where(TrialRow.tuning_id == tuning_id)
    if strategy_id:
        query = query.where(TrialRow.strategy_id == strategy_id)
    if failed:
        query = query.where(TrialRow.error_kind.is_not(None))
    if phase:
        query = query.where(ProposalRow.phase == phase)
    said = func.lower(StrategyRow.words + " " + ProposalRow.origin)
    for word in searched_words(text):
        query = query.where(said.contains(word, autoescape=True))
    rows, following = sorted_page(session, query, TRIAL_SORTS, sort, TrialRow.key, limit, cursor)
    errors = prediction_errors(session, tuning_id)
    items = [Trial.model_validate(_trial(errors, *row[:-2])) for row in rows]
    return Trials(tuning_id=tuning_id, items=items, next=following)


def trial(session: Session, tuning_id: str, position: int) -> TrialDetail:
    """Raises NotFound."""
    stored(session, TuningRow, tuning_id, "tuning")
    query = _TRIALS.where(TrialRow.tuning_id == tuning_id, TrialRow.position == position)
    remedy = f"GET /v1/tunings/{tuning_id}/trials lists them."
    row = found(session.execute(query).first(), "trial", str(position), remedy)
    return TrialDetail.model_validate(_trial(prediction_errors(session, tuning_id), *row))


_TRIALS = (
    select(TrialRow, ProposalRow, StrategyRow.words, TrialRow.timeline.is_not(None))
    .join(
        ProposalRow,
        (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
    )
    .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
)


def _trial(
    errors: PredictionErrors | None,
    trial: TrialRow,
    proposal: ProposalRow,
    words: str,
    recorded: bool,
) -> dict[str, Any]:
    return {
        **columns_of(proposal, TrialDetail),
        **interval(errors, proposal.predicted_seconds),
        **columns_of(trial, TrialDetail),
        "words": words,
        "recorded": recorded,
        "versions": dict(trial.versions),
    }
