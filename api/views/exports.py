"""What leaves the database: bundles, and all trials as a table."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from autosync.api.db.database import Database
from autosync.api.db.document_store import load_domain
from autosync.api.db.lookup import found, stored
from autosync.api.db.tables import (
    ClusterRow,
    DomainRow,
    GraphRow,
    OutcomeRow,
    ProposalRow,
    StrategyRow,
    TrialRow,
    TuningRow,
)
from autosync.api.engine.tuning_answer import measured_on
from autosync.api.views.reports import ran_on, ranked_strategies
from autosync.bundle import Evidence, make_bundle
from autosync.documents import from_json, to_json
from autosync.errors import NotSupported
from autosync.strategy import Strategy

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
    ("versions", TrialRow.versions, TEXT),
)
"""Name, column and type of a runtime record. Seconds are the domain's (divided by time_scale);
sent_bytes are of each node's NIC in one iteration, as they travelled (times byte_scale)."""
TIMELINE = ("timeline", TrialRow.timeline, TEXT)
"""Of Parquet alone: a `MeasuredTimeline` document would drown a CSV's rows."""
VERSIONS = len(COLUMNS) - 1
CHUNK = 1000
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Of cells that spreadsheets run (OWASP, CSV injection): names come from whoever posted them."""


def bundle_document(session: Session, tuning_id: str, strategy_id: str | None = None) -> str:
    """The bundle of the tuning's answer, or of one of its strategies, as JSON.

    Raises:
        NotFound: no such tuning or strategy. NotSupported: there is no answer yet.
    """
    tuning = stored(session, TuningRow, tuning_id, "tuning")
    if strategy_id is not None:
        return _bundle_of(session, tuning, strategy_id)
    outcome = session.get(OutcomeRow, tuning_id)
    if outcome is None:
        raise NotSupported(
            f"tuning {tuning_id} is {tuning.state} and has no confirmed answer.",
            thing="bundle",
            value=tuning.state,
            remedy="Wait until it has finished, or ask for one of its strategies (?strategy=ID).",
        )
    return outcome.bundle


def _bundle_of(session: Session, tuning: TuningRow, strategy_id: str) -> str:
    ranked = ranked_strategies(session, tuning.id).items
    entry = found(
        next((entry for entry in ranked if entry.strategy_id == strategy_id), None),
        thing="strategy",
        key=strategy_id,
        remedy=f"GET /v1/tunings/{tuning.id}/strategies lists them.",
        message=f"tuning {tuning.id} has no strategy {strategy_id[:80]!r}.",
    )
    query = select(StrategyRow.document).where(StrategyRow.strategy_id == strategy_id)
    strategy = from_json(Strategy, session.scalars(query.limit(1)).one())
    ddp = next((entry.step_seconds for entry in ranked if entry.is_ddp), None)
    where = ran_on(session, tuning.id) or tuning.launcher
    evidence = Evidence(
        predicted_seconds=entry.predicted_seconds,
        step_seconds=entry.step_seconds,
        ddp_step_seconds=ddp,
        measured_on=measured_on(where, tuning.byte_scale, tuning.time_scale),
    )
    return to_json(make_bundle(strategy, load_domain(session, tuning.domain_id), evidence))


def runtimes_csv(database: Database, domain_id: str | None = None) -> Iterator[str]:
    """All trials as CSV, a thousand rows at a time."""
    yield _csv([[name for name, _, _ in COLUMNS]])
    for rows in _chunks(database, domain_id, COLUMNS):
        yield _csv([[_cell(value) for value in row] for row in rows])


def runtimes_parquet(database: Database, domain_id: str | None = None) -> bytes:
    """All trials as Parquet (zstd), with the measured timelines of those that recorded one."""
    columns_of = (*COLUMNS, TIMELINE)
    schema = pa.schema([pa.field(name, kind) for name, _, kind in columns_of])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for rows in _chunks(database, domain_id, columns_of):
            columns = list(zip(*rows, strict=True))
            writer.write_table(pa.table(columns, schema=schema))
    return sink.getvalue()


def _chunks(
    database: Database, domain_id: str | None, columns: Columns
) -> Iterator[Sequence[Sequence[Any]]]:
    with database.reading() as session:
        query = _query(domain_id, columns)
        result = session.execute(query, execution_options={"yield_per": CHUNK})
        for rows in result.partitions():
            yield [
                (*row[:VERSIONS], json.dumps(dict(row[VERSIONS])), *row[VERSIONS + 1 :])
                for row in rows
            ]


def _query(domain_id: str | None, columns: Columns) -> Select[Any]:
    query = (
        select(*(column for _, column, _ in columns))
        .join(
            ProposalRow,
            (ProposalRow.tuning_id == TrialRow.tuning_id) & (ProposalRow.key == TrialRow.key),
        )
        .join(StrategyRow, StrategyRow.hash == ProposalRow.strategy_hash)
        .join(DomainRow, DomainRow.id == TrialRow.domain_id)
        .join(GraphRow, GraphRow.id == DomainRow.graph_id)
        .join(ClusterRow, ClusterRow.id == DomainRow.cluster_id)
        .order_by(TrialRow.created_at, TrialRow.tuning_id, TrialRow.position)
    )
    return query if domain_id is None else query.where(TrialRow.domain_id == domain_id)


def _cell(value: Any) -> Any:
    """A list as words; text that a spreadsheet would run as a formula behind an apostrophe."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue()
