"""The trials of all tunings as rows of one table: CSV, JSON lines and Parquet, streamed.

Rows are read a part at a time. Each part is a short transaction that goes on behind the last row of
the one before: memory does not grow with the table, and an export of hours holds back no checkpoint
of the database. Trials that are measured meanwhile come at the end.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import eq, ge, lt
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import ColumnElement, Select, Subquery, Text, cast, select, tuple_

from autosync.api.db.database import Database
from autosync.api.db.tables import (
    ClusterRow,
    DomainRow,
    GraphRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from autosync.units import MIB

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
    ("accumulate", DomainRow.accumulate, WHOLE),
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


def strategy_ids(only: RuntimeFilter) -> Select[str]:
    """Those that were tried, in order; the filter by names is not looked at."""
    query = select(TrialRow.strategy_id).where(*_of_trials(only))
    return query.distinct().order_by(TrialRow.strategy_id)


def _joined(columns: Sequence[Any]) -> Select[Any]:
    return (
        select(*columns)
        .select_from(TrialRow)
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
        .join(TuningRow, TuningRow.id == TrialRow.tuning_id)
        .join(DomainRow, DomainRow.id == TrialRow.domain_id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(ClusterRow, ClusterRow.id == TuningRow.cluster_id)
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
    if only.graph is not None:
        domains = select(DomainRow.id).join(GraphRow).where(GraphRow.name == only.graph)
        domain_in_no_index: ColumnElement[str] = TrialRow.domain_id + ""
        query = query.where(domain_in_no_index.in_(domains))
    if only.cluster is not None:
        on_it = select(TuningRow.id).join(ClusterRow).where(ClusterRow.name == only.cluster)
        tuning_in_no_index: ColumnElement[str] = TrialRow.tuning_id + ""
        query = query.where(tuning_in_no_index.in_(on_it))
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


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Of cells that spreadsheets run (OWASP, CSV injection): names come from whoever posted them."""
ROW_GROUP_BYTES = 8 * MIB
"""What a group of rows has before it is compressed; each group costs the footer some kB."""


def runtimes_csv(database: Database, only: RuntimeFilter = EVERYTHING) -> Iterator[str]:
    """Lists are words; text that a spreadsheet would run begins with an apostrophe."""
    yield _csv([[name for name, _, _ in COLUMNS]])
    for rows in runtime_rows(database, only):
        yield _csv([[_cell(value) for value in row] for row in rows])


def runtimes_jsonl(database: Database, only: RuntimeFilter = EVERYTHING) -> Iterator[str]:
    """A JSON object a line."""
    names = [name for name, _, _ in COLUMNS]
    for rows in runtime_rows(database, only):
        objects = (dict(zip(names, row, strict=True)) for row in rows)
        yield "".join(f"{json.dumps(_with_versions(each))}\n" for each in objects)


def runtimes_parquet(database: Database, only: RuntimeFilter = EVERYTHING) -> Iterator[bytes]:
    """Compressed with zstd, with the measured timelines of those that recorded one."""
    columns_of = (*COLUMNS, TIMELINE)
    schema = pa.schema([pa.field(name, kind) for name, _, kind in columns_of])
    sink = PartsSink()
    tables = (
        pa.table(list(zip(*rows, strict=True)), schema=schema)
        for rows in runtime_rows(database, only, columns_of)
    )
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in row_groups(tables):
            writer.write_table(group)
            yield sink.taken()
    yield sink.taken()


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined to ones of ROW_GROUP_BYTES or a little more."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


class PartsSink(io.RawIOBase):
    """A file that is written once, from its beginning to its end, and taken away in parts."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._written += len(part)
        return len(part)

    def tell(self) -> int:
        return self._written

    def taken(self) -> bytes:
        """What was written since the last time."""
        taken = b"".join(self._parts)
        self._parts = []
        return taken


def _with_versions(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "versions": _parsed(row["versions"])}


@lru_cache(maxsize=256)
def _parsed(versions: str) -> Any:
    return json.loads(versions)


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()
