"""The trials of all tunings as rows of one table, read a part at a time.

Each part is a short transaction that goes on behind the last row of the one before: memory does not
grow with the table, and an export of hours holds back no checkpoint of the database. Trials that
are measured meanwhile come at the end.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import eq, ge, lt
from typing import Any

import pyarrow as pa
from sqlalchemy import ColumnElement, Select, Subquery, Text, cast, select, tuple_

from autosync.api.db.database import Database
from autosync.api.db.tables import (
    ClusterRow,
    DomainRow,
    GraphRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
)

NUMBER, WHOLE, TEXT = pa.float64(), pa.int64(), pa.string()
Columns = tuple[tuple[str, Any, Any], ...]
COLUMNS: Columns = (
    ("tuning_id", TrialRow.tuning_id, TEXT),
    ("trial", TrialRow.key, TEXT),
    ("position", TrialRow.position, WHOLE),
    ("measured_at", TrialRow.created_at, NUMBER),
    ("domain_id", TrialRow.domain_id, TEXT),
    ("graph_id", GraphRow.id, TEXT),
    ("graph", GraphRow.name, TEXT),
    ("batch_size", GraphRow.batch_size, WHOLE),
    ("cluster_id", ClusterRow.id, TEXT),
    ("cluster", ClusterRow.name, TEXT),
    ("world_size", ClusterRow.world_size, WHOLE),
    ("strategy_id", TrialRow.strategy_id, TEXT),
    ("strategy", StrategyRow.words, TEXT),
    ("shards", StrategyRow.shards, WHOLE),
    ("origin", ProposalRow.origin, TEXT),
    ("phase", ProposalRow.phase, TEXT),
    ("round", ProposalRow.round, WHOLE),
    ("simulator", ProposalRow.simulator, TEXT),
    ("predicted_seconds", ProposalRow.predicted_seconds, NUMBER),
    ("step_seconds", TrialRow.step_seconds, NUMBER),
    ("spread", TrialRow.spread, NUMBER),
    ("iteration_seconds", TrialRow.iteration_seconds, pa.list_(NUMBER)),
    ("error", TrialRow.error_kind, TEXT),
    ("error_message", TrialRow.error_message, TEXT),
    ("launcher", TrialRow.launcher, TEXT),
    ("byte_scale", TrialRow.byte_scale, NUMBER),
    ("time_scale", TrialRow.time_scale, NUMBER),
    ("load", TrialRow.load, NUMBER),
    ("overhead_seconds", TrialRow.overhead_seconds, NUMBER),
    ("peak_memory_bytes", TrialRow.peak_memory_bytes, WHOLE),
    ("sent_bytes", TrialRow.sent_bytes, pa.list_(WHOLE)),
    ("versions", cast(TrialRow.versions, Text), TEXT),
)
"""Name, column and type of a runtime record. Seconds are the domain's (divided by time_scale);
sent_bytes are of each node's NIC in one iteration, as they travelled (times byte_scale)."""
TIMELINE = ("timeline", TrialRow.timeline, TEXT)
"""Of Parquet alone: a `MeasuredTimeline` document would drown a CSV's rows."""
VERSIONS = len(COLUMNS) - 1
ROWS_AT_ONCE = 1000
_KEY = (TrialRow.created_at, TrialRow.tuning_id, TrialRow.position)


@dataclass(frozen=True, slots=True)
class RuntimeFilter:
    """Which trials; None: all. domain, tuning: ids. graph, cluster: names. since, until: measured
    then or later, and before then, in seconds since 1970-01-01 UTC."""

    domain: str | None = None
    tuning: str | None = None
    graph: str | None = None
    cluster: str | None = None
    since: float | None = None
    until: float | None = None


EVERYTHING = RuntimeFilter()


def runtime_rows(
    database: Database, only: RuntimeFilter = EVERYTHING, columns: Columns = COLUMNS
) -> Iterator[list[tuple[Any, ...]]]:
    """Up to ROWS_AT_ONCE rows of these columns, again and again, the oldest trial first.

    columns: COLUMNS, or these and further ones; `versions` is a JSON object in a text.
    """
    names = [name for name, _, _ in columns]
    key = [names.index(name) for name in ("measured_at", "tuning_id", "position")]
    last: tuple[Any, ...] | None = None
    while True:
        part = _of_page(_page(only, last), [column for _, column, _ in columns])
        with database.reading() as session:
            rows = session.execute(part).all()
        if rows:
            yield [
                (*row[:VERSIONS], _versions_object(row[VERSIONS]), *row[VERSIONS + 1 :])
                for row in rows
            ]
            last = tuple(rows[-1][place] for place in key)
        if len(rows) < ROWS_AT_ONCE:
            return


def runtime_query(only: RuntimeFilter, columns: Sequence[Any]) -> Select[Any]:
    """These columns of every trial that the filter lets through."""
    named = ((GraphRow.name, only.graph), (ClusterRow.name, only.cluster))
    return _joined(columns).where(
        *_of_trials(only), *(column == value for column, value in named if value is not None)
    )


def _joined(columns: Sequence[Any]) -> Select[Any]:
    return (
        select(*columns)
        .select_from(TrialRow)
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
        .join(DomainRow, DomainRow.id == TrialRow.domain_id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
    )


def _of_trials(only: RuntimeFilter) -> list[ColumnElement[bool]]:
    """What the columns of a trial alone decide."""
    wanted: tuple[tuple[Any, Callable[[Any, Any], Any], Any], ...] = (
        (TrialRow.domain_id, eq, only.domain),
        (TrialRow.tuning_id, eq, only.tuning),
        (TrialRow.created_at, ge, only.since),
        (TrialRow.created_at, lt, only.until),
    )
    return [is_so(column, value) for column, is_so, value in wanted if value is not None]


def _page(only: RuntimeFilter, last: tuple[Any, ...] | None) -> Subquery:
    """Keys of the next ROWS_AT_ONCE trials behind `last`, out of the index that has their order,
    before any other table is looked at: joined first, all that is left would be sorted for each
    page."""
    query = select(TrialRow.tuning_id, TrialRow.key).where(*_of_trials(only))
    named = ((GraphRow.name, only.graph), (ClusterRow.name, only.cluster))
    asked = [column == value for column, value in named if value is not None]
    if asked:
        domains = select(DomainRow.id).join(GraphRow).join(ClusterRow).where(*asked)
        in_no_index: ColumnElement[str] = TrialRow.domain_id + ""
        query = query.where(in_no_index.in_(domains))
    if last is not None:
        query = query.where(tuple_(*_KEY) > last)
    return query.order_by(*_KEY).limit(ROWS_AT_ONCE).subquery()


def _of_page(page: Subquery, columns: Sequence[Any]) -> Select[Any]:
    same = (page.c.tuning_id == TrialRow.tuning_id) & (page.c.key == TrialRow.key)
    return _joined(columns).join(page, same).order_by(*_KEY)


@lru_cache(maxsize=256)
def _versions_object(pairs: str) -> str:
    """A JSON object of the pairs of a column; most rows have those of their neighbours."""
    return json.dumps(dict(json.loads(pairs)))
