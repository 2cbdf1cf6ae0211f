"""The records of a contest: what was measured, so that nothing is measured again.

A record folder holds four tables: `rows` (trials), `domains` (with their probed costs and facts),
`strategies` (what AutoSync brought to the finals) and `scales` (`time_scales`). While a contest
runs, each row is a line of `TABLE/DOMAIN.jsonl`, on the disk when `add` returns. `pack` moves the
lines into `TABLE.parquet`; reading takes both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from autosync.documents import from_data, from_json, to_data, to_json
from autosync.domain import Domain
from autosync.search.loop.tuning_store import MemoryStore, Proposal
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult

Kind = Literal["search", "final"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ContestRow:
    """One trial of the contest. competitor: `autosync_N` of a tuning with N trials; empty in the
    final, where a strategy runs once, whoever brought it.

    number: of the trial, or of the final's repeat, from 0. size_mib: the setting that was tried (of
    `designs` a place in their list), 0 without one. warmup: iterations before
    the measured ones of a pass. iterations: measured, of all passes. Both are None in records of
    before 2026-11-27, which do not hold them. mode: of `benchmarks.workers`, who ran the strategy.
    label: for people.
    """

    kind: Kind
    competitor: str
    number: int
    size_mib: float
    mode: str
    strategy_id: str
    label: str
    step_seconds: float | None
    spread: float | None
    load: float | None
    error: str
    launcher: str
    warmup: int | None = None
    iterations: int | None = None

    @property
    def key(self) -> str:
        """Who runs what: alike for all trials of one strategy."""
        return f"{self.mode}:{self.strategy_id}"


@dataclass(frozen=True, slots=True)
class ContestFacts:
    """What a domain's figures depend on. ring_seconds: of `collection_plan`. document: the domain
    with its probed costs, as JSON."""

    name: str
    rho: float
    byte_scale: float
    time_scale: float
    compute_seconds: float
    ring_seconds: float
    limit_seconds: float
    limit_tightest: str
    domain_id: str
    provenance: str
    document: str = ""

    @property
    def domain(self) -> Domain:
        return from_json(Domain, self.document, f"domain of {self.name}")


@dataclass(frozen=True, slots=True)
class KeptStrategy:
    strategy_id: str
    document: str


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """One trial of `time_scales`. role: `ddp`, `autosync`, or the name of the best other
    competitor. strategy_id: None in older records."""

    role: str
    label: str
    time_scale: float
    repeat: int
    step_seconds: float | None
    launcher: str
    provenance: str
    strategy_id: str | None = None


@dataclass(frozen=True, slots=True)
class Records(Generic[T]):
    """A table of `folder`, by domain. row: the type of its rows."""

    folder: Path
    table: str
    row: type[T]

    def read(self, domain: str) -> list[T]:
        """Packed rows first, then lines."""
        found = [row for name, row in self._packed() if name == domain]
        return found + self._lines(domain)

    def domains(self) -> list[str]:
        lines = (file.stem for file in (self.folder / self.table).glob("*.jsonl"))
        return sorted({*lines, *(name for name, _ in self._packed())})

    def add(self, domain: str, row: T) -> None:
        append_line(self._file(domain), to_json(row))

    def pack(self) -> None:
        """Move the lines of every domain into the Parquet file."""
        rows = [
            {"domain": name, **to_data(row)} for name in self.domains() for row in self.read(name)
        ]
        if not rows:
            return
        pq.write_table(pa.Table.from_pylist(rows), self._parquet, compression="zstd")
        for file in (self.folder / self.table).glob("*.jsonl"):
            file.unlink()

    @property
    def _parquet(self) -> Path:
        return self.folder / f"{self.table}.parquet"

    def _packed(self) -> list[tuple[str, T]]:
        if not self._parquet.is_file():
            return []
        rows = pq.read_table(self._parquet).to_pylist()
        return [
            (row.pop("domain"), from_data(self.row, row, source=self._parquet.name)) for row in rows
        ]

    def _lines(self, domain: str) -> list[T]:
        file = self._file(domain)
        return [from_json(self.row, line, file.name) for line in whole_lines(file)]

    def _file(self, domain: str) -> Path:
        return self.folder / self.table / f"{domain}.jsonl"


def trial_rows(folder: Path) -> Records[ContestRow]:
    return Records(folder, "rows", ContestRow)


def domain_facts(folder: Path) -> Records[ContestFacts]:
    return Records(folder, "domains", ContestFacts)


def kept_strategies(folder: Path) -> Records[KeptStrategy]:
    return Records(folder, "strategies", KeptStrategy)


def scale_rows(folder: Path) -> Records[ScaleRow]:
    return Records(folder, "scales", ScaleRow)


def pack(folder: Path) -> None:
    for table in (trial_rows, domain_facts, kept_strategies, scale_rows):
        table(folder).pack()


class ContestFile:
    """A domain's trials, in memory and on the disk."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name, self._records = name, trial_rows(folder)
        self.rows = self._records.read(name)

    def add(self, row: ContestRow) -> None:
        self._records.add(self._name, row)
        self.rows.append(row)

    def of(self, kind: Kind, competitor: str) -> list[ContestRow]:
        return [e for e in self.rows if e.kind == kind and e.competitor == competitor]


def stored_facts(folder: Path) -> list[ContestFacts]:
    """Of every domain that was begun, in the order of their names."""
    records = domain_facts(folder)
    return [facts for name in records.domains() for facts in records.read(name)]


def facts_of(folder: Path, name: str) -> ContestFacts | None:
    """None before the domain has been probed."""
    return next(iter(domain_facts(folder).read(name)), None)


def store_strategies(folder: Path, name: str, strategies: Iterable[Strategy]) -> None:
    """Keep what AutoSync brought to a domain's finals: its tunings' own files are too large to be
    kept for long, and others may want to run an answer again."""
    known = stored_strategies(folder, name)
    for each in strategies:
        if each.id not in known:
            kept_strategies(folder).add(name, KeptStrategy(each.id, to_json(each)))


def stored_strategies(folder: Path, name: str) -> dict[str, Strategy]:
    """By their ids."""
    kept = kept_strategies(folder).read(name)
    return {each.strategy_id: from_json(Strategy, each.document, name) for each in kept}


class FileStore(MemoryStore):
    """`tuning_store.Store` in a file: a tuning of the contest goes on where it stopped."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        for line in whole_lines(file):
            kind, _, document = line.partition(" ")
            if kind == "proposal":
                super().propose([from_json(Proposal, document, file.name)])
            else:
                super().record(from_json(TrialResult, document, file.name))
        self._file = file

    def propose(self, proposals: Sequence[Proposal]) -> None:
        known = {each.key for each in self.proposals()}
        new = [f"proposal {to_json(each)}" for each in proposals if each.key not in known]
        if new:
            append_line(self._file, "\n".join(new))
        super().propose(proposals)

    def record(self, result: TrialResult) -> None:
        super().record(result)
        append_line(self._file, f"trial {to_json(result)}")


def whole_lines(file: Path) -> list[str]:
    """The lines that were written to their end; half a line that an interrupt left is cut off."""
    if not file.is_file():
        return []
    text = file.read_text()
    kept = text[: text.rfind("\n") + 1]
    if kept != text:
        file.write_text(kept)
    return kept.splitlines()


def append_line(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(line + "\n")
