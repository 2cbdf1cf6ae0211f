"""Runtimes as CSV, JSON lines and Parquet, streamed in constant memory."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autosync.api.db.database import Database
from autosync.api.views.runtime_rows import (
    COLUMNS,
    EVERYTHING,
    TIMELINE,
    RuntimeFilter,
    runtime_rows,
)
from autosync.units import MIB

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
