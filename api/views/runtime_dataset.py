"""Trials as a measured dataset: a ZIP, streamed, of the folder that `autosync simulator train` and
`autosync dataset` read (`autosync.simulator.runtime_dataset` describes its tables).

A search's own picks are of origin `pick/SIMULATOR`; the confirmation's repeats are further passes.
"""

import zipfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import func, select

from autosync.api.db.database import Database
from autosync.api.db.document_store import load_domain
from autosync.api.db.tables import ProposalRow, StrategyRow, TrialRow
from autosync.api.views.runtimes import (
    COLUMNS,
    NUMBER,
    TEXT,
    WHOLE,
    PartsSink,
    RuntimeFilter,
    row_groups,
    runtime_query,
    runtime_rows,
    strategy_ids,
)
from autosync.documents import to_json
from autosync.errors import NotSupported
from autosync.search.loop.tuning_store import FOUND_BY_SEARCH

TRIALS = pa.schema(
    [
        ("domain", TEXT),
        ("strategy_id", TEXT),
        ("origin", TEXT),
        ("occasion", WHOLE),
        ("pass", WHOLE),
        ("step_seconds", NUMBER),
        ("spread", NUMBER),
        ("error", TEXT),
        ("launcher", TEXT),
        ("byte_scale", NUMBER),
        ("time_scale", NUMBER),
        ("load", NUMBER),
        ("round", WHOLE),
        ("predicted_seconds", NUMBER),
    ]
)
STRATEGIES = pa.schema([("domain", TEXT), ("strategy_id", TEXT), ("strategy", TEXT)])
NAMES = tuple(name for name, _, _ in COLUMNS)
DOCUMENTS_AT_ONCE = 50


def runtimes_zip(database: Database, only: RuntimeFilter) -> Iterator[bytes]:
    """
    Raises:
        NotSupported: a domain was measured at several scales or by several launchers, whose times
            do not compare; before anything is sent.
    """
    domains = _domains(database, only)
    return _parts(database, only, domains)


def _parts(database: Database, only: RuntimeFilter, domains: list[str]) -> Iterator[bytes]:
    sink = PartsSink()
    with zipfile.ZipFile(sink, "w") as archive:  # what is in it is compressed already
        for name, schema, tables in (
            ("trials.parquet", TRIALS, _trials(database, only)),
            ("strategies.parquet", STRATEGIES, _strategies(database, only)),
        ):
            with archive.open(name, "w", force_zip64=True) as member:
                table = PartsSink()
                with pq.ParquetWriter(table, schema, compression="zstd") as writer:
                    for group in row_groups(tables):
                        writer.write_table(group)
                        member.write(table.taken())
                        yield sink.taken()
                member.write(table.taken())
        for domain_id in domains:
            with database.reading() as session:
                document = to_json(load_domain(session, domain_id))
            archive.writestr(f"domains/{domain_id}.json", f"{document}\n")
            yield sink.taken()
    yield sink.taken()


def _domains(database: Database, only: RuntimeFilter) -> list[str]:
    kind = (TrialRow.domain_id, TrialRow.launcher, TrialRow.byte_scale, TrialRow.time_scale)
    with database.reading() as session:
        rows = session.execute(runtime_query(only, kind).distinct()).all()
    seen: dict[str, tuple[str, float, float]] = {}
    for domain_id, launcher, byte_scale, time_scale in rows:
        where = (launcher.partition(" ")[0], byte_scale, time_scale)
        if seen.setdefault(domain_id, where) != where:
            raise NotSupported(
                f"domain {domain_id} was measured under {seen[domain_id]} and under {where} "
                "(launcher, byte scale, time scale): such times do not compare.",
                thing="domain",
                value=domain_id,
                remedy="Ask for one tuning (?tuning=ID), or for another time (?since=, ?until=).",
            )
    return sorted(seen)


def _trials(database: Database, only: RuntimeFilter) -> Iterator[pa.Table]:
    for rows in runtime_rows(database, only):
        named = (dict(zip(NAMES, row, strict=True)) for row in rows)
        yield pa.Table.from_pylist([_trial(row) for row in named], schema=TRIALS)


def _trial(row: dict[str, Any]) -> dict[str, Any]:
    picked = row["origin"] in FOUND_BY_SEARCH
    confirms = row["phase"] == "confirm"
    same = {name: row[name] for name in TRIALS.names if name in row}
    return same | {
        "domain": row["domain_id"],
        "origin": f"pick/{row['simulator']}" if picked else row["origin"],
        "occasion": 1,
        "pass": 2 + row["round"] if confirms else 1,
        "round": 1 + (0 if confirms else row["round"]) if picked else None,
        "predicted_seconds": row["predicted_seconds"] if picked else None,
    }


def _strategies(database: Database, only: RuntimeFilter) -> Iterator[pa.Table]:
    """Each once in a domain. Each part is a short transaction that goes on behind the last id
    of the one before, so that a reader who waits holds no connection."""
    newest = func.max(ProposalRow.strategy_hash).label("hash")
    last = ""
    while True:
        ids = strategy_ids(only).where(TrialRow.strategy_id > last).limit(DOCUMENTS_AT_ONCE)
        with database.reading() as session:
            page = session.scalars(ids).all()
            wanted = (
                runtime_query(only, (TrialRow.domain_id, TrialRow.strategy_id, newest))
                .where(TrialRow.strategy_id.in_(page))
                .group_by(TrialRow.domain_id, TrialRow.strategy_id)
                .subquery()
            )
            query = select(wanted.c.domain_id, wanted.c.strategy_id, StrategyRow.document).join(
                StrategyRow, StrategyRow.hash == wanted.c.hash
            )
            rows = session.execute(query).all() if page else []
        if rows:
            yield pa.table(list(zip(*rows, strict=True)), schema=STRATEGIES)
        if len(page) < DOCUMENTS_AT_ONCE:
            return
        last = page[-1]
