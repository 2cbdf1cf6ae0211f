"""The files of the live contest: what was measured, line by line, so that nothing is done again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.search.loop.tuning_store import MemoryStore, Proposal
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult

Kind = Literal["search", "final"]


@dataclass(frozen=True, slots=True)
class ContestRow:
    """One trial of the contest. competitor: `autosync_N` of a tuning with N trials; empty in the
    final, where a strategy runs once, whoever brought it.

    number: of the trial, or of the final's repeat, from 0. size_mib: the setting that was tried, 0
    without one. mode: of `benchmarks.workers`, who ran the strategy. label: for people.
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

    @property
    def key(self) -> str:
        """Who runs what: alike for all trials of one strategy."""
        return f"{self.mode}:{self.strategy_id}"


@dataclass(frozen=True, slots=True)
class ContestFacts:
    """What a domain's figures depend on. ring: `ring_seconds`."""

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


@dataclass
class ContestFile:
    """A domain's rows. Each is on the disk when `add` returns; half a line that an interrupt left
    is dropped."""

    file: Path
    rows: list[ContestRow] = field(default_factory=list)

    @classmethod
    def opened(cls, folder: Path, name: str) -> "ContestFile":
        file = folder / "live" / f"{name}.jsonl"
        return cls(file, [from_json(ContestRow, line, file.name) for line in whole_lines(file)])

    def add(self, row: ContestRow) -> None:
        append_line(self.file, to_json(row))
        self.rows.append(row)

    def of(self, kind: Kind, competitor: str) -> list[ContestRow]:
        return [e for e in self.rows if e.kind == kind and e.competitor == competitor]


def whole_lines(file: Path) -> list[str]:
    """The lines that were written to their end; others are cut off."""
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


def store_domain(folder: Path, name: str, domain: Domain, facts: ContestFacts) -> None:
    place = folder / "live"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.domain.json").write_text(to_json(domain) + "\n")
    (place / f"{name}.facts.json").write_text(to_json(facts) + "\n")


def stored_domain(folder: Path, name: str) -> Domain | None:
    """The domain with its probed costs, once it has been probed."""
    file = folder / "live" / f"{name}.domain.json"
    return from_json(Domain, file.read_text(), file.name) if file.is_file() else None


def store_strategies(folder: Path, name: str, strategies: Iterable[Strategy]) -> None:
    """Keep what AutoSync brought to a domain's finals: its tunings' own files are too large to be
    kept for long, and others may want to run an answer again."""
    known = stored_strategies(folder, name)
    for each in strategies:
        if each.id not in known:
            append_line(_strategies_file(folder, name), to_json(each))


def stored_strategies(folder: Path, name: str) -> dict[str, Strategy]:
    """By their ids."""
    file = _strategies_file(folder, name)
    read = (from_json(Strategy, line, file.name) for line in whole_lines(file))
    return {each.id: each for each in read}


def _strategies_file(folder: Path, name: str) -> Path:
    return folder / "live" / f"{name}.strategies.jsonl"


def stored_facts(folder: Path) -> list[ContestFacts]:
    """Of every domain that was begun, in the order of their names."""
    files = sorted((folder / "live").glob("*.facts.json"))
    return [from_json(ContestFacts, file.read_text(), file.name) for file in files]
