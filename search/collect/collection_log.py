"""What the folder of a collection holds: passes, strategies, and the domains they belong to.

The dataset's tables are the checkpoint. Since the last one every pass is appended to a log and
synced, so that a collection can stop anywhere and resume. A line of the log is a row of the table
(`autosync.simulator.runtime_dataset`), or

    {"strategy": document, "id": ...}    before the first pass of a strategy
    {"picks": [{"domain", "strategy_id", "origin", "round", "predicted_seconds"}]}
                                         a round of picks, stored whole before its first pass
    {"void": [passes]}                   passes to measure again
    {"forget": domain}                   a domain that was measured anew, as another domain

targets/NAME.json is a target's domain with its probed costs. A target that is measured anew is
probed anew, which makes another domain; until its passes are complete, the old domain is kept as
NAME.json.replaced.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from autosync.atomic_write import replaced_atomically
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput
from autosync.simulator.runtime_dataset import read_trials, write_dataset
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult
from autosync.trials.pool.machine_lock import lock_taken

CONTROL = 0
"""The pass number of controls."""

CONTROL_ORIGIN = "canary"
"""The origin of controls; the name is that of the datasets."""


PICK_ORIGINS = ("pick/timeline", "pick/transferred", "pick/random")
"""Origins of picks: strategies that a search chose (`benchmarks/picks.py`)."""


@dataclass(frozen=True, slots=True)
class CollectedStrategy:
    """A strategy to measure, and why. origin: `sampled`, the name of its design, or one of
    `PICK_ORIGINS`.

    round, predicted_seconds: of a pick, the round that chose it, from 1, and its predicted seconds.
    """

    origin: str
    strategy: Strategy
    round: int | None = None
    predicted_seconds: float | None = None


class PassKey(NamedTuple):
    """Identifies one measuring pass of a strategy. number: 1, 2 and, where they disagree, 3."""

    domain: str
    occasion: int
    number: int
    strategy_id: str


@contextmanager
def held_alone(folder: Path) -> Iterator[None]:
    """No other process collects into the folder meanwhile: at its checkpoints each would drop what
    the other has appended to the log.

    Raises:
        InvalidInput: one does already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, alone = os.open(folder, os.O_RDONLY), True
    try:
        with suppress(OSError):  # some network file systems lock no folders
            alone = lock_taken(file)
        if not alone:
            raise InvalidInput(
                f"another process collects into {str(folder)!r} already.",
                thing="folder",
                value=str(folder),
                remedy="Let it end, or collect into another folder.",
            )
        yield
    finally:
        os.close(file)


@dataclass(slots=True)
class CollectionLog:
    """Reads what FOLDER holds on construction.

    Raises:
        InvalidInput: a line of the log is no record (only the last may be torn, by a crash).
    """

    folder: Path
    _rows: dict[PassKey, dict[str, Any]] = field(default_factory=dict)
    _controls: dict[tuple[str, int, float], dict[str, Any]] = field(default_factory=dict)
    _voided: set[PassKey] = field(default_factory=set)
    _strategies: dict[str, str] = field(default_factory=dict)
    _picks: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "trials.parquet").exists():
            for record in read_trials(self.folder).to_dict("records"):
                row = {str(column): value for column, value in record.items()}
                self._strategies[row["strategy_id"]] = row.pop("strategy")
                self._take(row)
        if self._log.exists():
            self._replay(self._log.read_bytes())

    @property
    def _log(self) -> Path:
        return self.folder / "log.jsonl"

    def _replay(self, content: bytes) -> None:
        whole, _, torn = content.rpartition(b"\n")
        if torn:  # a crash in the middle of a line: that pass is measured again
            os.truncate(self._log, len(content) - len(torn))  # works on a full disk, too
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInput(
                    f"line {number} of {str(self._log)!r} is no record: {error}.",
                    thing="log",
                    value=number,
                    remedy="Restore the file, or collect into a new folder.",
                ) from None

    def seconds(self, key: PassKey) -> float | None:
        """Measured seconds of a pass; None where it failed or is not there."""
        row = self._rows.get(key)
        return None if row is None else row["step_seconds"]

    def __contains__(self, key: PassKey) -> bool:
        return key in self._rows

    def control_seconds(self, domain: str) -> list[float]:
        """Of the controls that ran, oldest first."""
        return [
            row["step_seconds"]
            for row in self._controls.values()
            if row["domain"] == domain and row["step_seconds"]
        ]

    def record(
        self,
        key: PassKey,
        collected: CollectedStrategy,
        measured_at: float,
        result: TrialResult,
    ) -> None:
        """Append one pass; controls (pass 0) are stored beside the others."""
        self._keep_strategy(collected.strategy)
        self._write(_row(key, collected, measured_at, result))

    def record_round(self, domain: str, chosen: Sequence[CollectedStrategy]) -> None:
        """Append a round of picks, whole or not at all."""
        for one in chosen:
            self._keep_strategy(one.strategy)
        self._write({"picks": [_pick(domain, one) for one in chosen]})

    def picks(self, domain: str) -> list[CollectedStrategy]:
        """Every pick of a domain, measured or still to be, in the order of their rounds."""
        found = [pick for key, pick in self._picks.items() if key[0] == domain]
        return [
            CollectedStrategy(
                pick["origin"],
                from_json(Strategy, self._strategies[pick["strategy_id"]], source="picks"),
                pick["round"],
                pick["predicted_seconds"],
            )
            for pick in sorted(found, key=lambda pick: pick["round"])
        ]

    def strategies(self, domain: str) -> list[CollectedStrategy]:
        """Every strategy of a domain of which a pass was measured, picks left out."""
        origins = {
            key.strategy_id: row["origin"]
            for key, row in self._rows.items()
            if key.domain == domain and row["round"] is None
        }
        return [
            CollectedStrategy(origin, from_json(Strategy, self._strategies[i], source="trials"))
            for i, origin in origins.items()
        ]

    def trials(self, domain: str, picks: bool) -> pd.DataFrame:
        """The passes of a domain's picks, or those of its other strategies, as in the dataset."""
        rows = [
            row
            for key, row in self._rows.items()
            if key.domain == domain and (row["round"] is not None) == picks
        ]
        table = pd.DataFrame(rows, columns=list(rows[0]) if rows else None)
        if rows:
            table["strategy"] = table["strategy_id"].map(self._strategies)
        return table

    def other_load(self, key: PassKey) -> float:
        """What else used the machine's cores during a pass, 0 to 1; 0 where none was measured."""
        return float(self._rows[key]["load"] or 0.0)

    def void(self, keys: Sequence[PassKey]) -> None:
        """Forget these passes, which are measured again."""
        if keys:
            self._write({"void": keys})

    def void_once(self, keys: Sequence[PassKey]) -> list[PassKey]:
        """Forget these passes but for those that were voided before. Returns the forgotten."""
        voided = [key for key in keys if key not in self._voided]
        self.void(voided)
        return voided

    def scales(self, domain: str) -> set[tuple[float, float]]:
        """Each `(byte_scale, time_scale)` at which a pass of the domain was measured."""
        rows = [row for row in self._rows.values() if row["domain"] == domain]
        return {(row["byte_scale"], row["time_scale"]) for row in rows}

    def launchers(self, domain: str) -> set[str]:
        """Each kind of launcher by which a pass of the domain was measured."""
        rows = [row for row in self._rows.values() if row["domain"] == domain]
        return {row["launcher"].partition(" ")[0] for row in rows if row["step_seconds"]}

    def forget(self, domain: str) -> None:
        """Drop every pass of a domain."""
        self._write({"forget": domain})

    def checkpoint(self, domains: Sequence[Domain]) -> None:
        """Write the dataset of everything so far, and begin a new log."""
        rows = [*self._rows.values(), *self._controls.values()]
        if not rows:
            return
        table = pd.DataFrame(rows)
        table["strategy"] = table["strategy_id"].map(self._strategies)
        measured = set(table["domain"])
        table["round"] = table["round"].astype("Int64")
        table["predicted_seconds"] = table["predicted_seconds"].astype("float64")
        write_dataset(self.folder, [each for each in domains if each.id in measured], table)
        self._begin_log()

    def _begin_log(self) -> None:
        """A new log, of the picks that no pass has measured yet."""
        measured = {(key.domain, key.strategy_id) for key in self._rows}
        waiting = [pick for key, pick in self._picks.items() if key not in measured]
        if not waiting:
            self._log.unlink(missing_ok=True)
            return
        ids = [pick["strategy_id"] for pick in waiting]
        lines: list[dict[str, Any]] = [{"strategy": self._strategies[i], "id": i} for i in ids]
        with replaced_atomically(self._log) as draft:
            draft.write_text("".join(map(_line, [*lines, {"picks": waiting}])))

    def _take(self, row: dict[str, Any]) -> None:
        if "strategy" in row:
            self._strategies[row["id"]] = row["strategy"]
            return
        if "picks" in row:
            self._picks |= {(pick["domain"], pick["strategy_id"]): pick for pick in row["picks"]}
            return
        if "void" in row:
            for fields in row["void"]:
                key = PassKey(*fields)
                self._voided.add(key)
                self._rows.pop(key, None)
            return
        if "forget" in row:
            gone = row["forget"]
            self._rows = {key: row for key, row in self._rows.items() if key.domain != gone}
            self._controls = {key: row for key, row in self._controls.items() if key[0] != gone}
            self._picks = {key: row for key, row in self._picks.items() if key[0] != gone}
            return
        for name in ("round", "predicted_seconds"):  # NA where missing, as Parquet keeps them
            row[name] = None if pd.isna(row.get(name)) else row[name]
        if row["step_seconds"] is not None and not row["step_seconds"] > 0:
            row["step_seconds"] = None  # NaN, as Parquet keeps what is missing
        if row["pass"] == CONTROL:
            self._controls[row["domain"], row["occasion"], row["measured_at"]] = row
        else:
            key = PassKey(row["domain"], row["occasion"], row["pass"], row["strategy_id"])
            self._rows[key] = row
            if row["origin"] in PICK_ORIGINS:
                self._picks[row["domain"], row["strategy_id"]] = {name: row[name] for name in PICK}

    def _keep_strategy(self, strategy: Strategy) -> None:
        if strategy.id not in self._strategies:
            self._write({"strategy": to_json(strategy), "id": strategy.id})

    def _write(self, row: dict[str, Any]) -> None:
        with self._log.open("a") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())
        self._take(row)


PICK = ("domain", "strategy_id", "origin", "round", "predicted_seconds")
"""What is stored of a pick."""


def _pick(domain: str, chosen: CollectedStrategy) -> dict[str, Any]:
    values = (domain, chosen.strategy.id, chosen.origin, chosen.round, chosen.predicted_seconds)
    return dict(zip(PICK, values, strict=True))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), default=list) + "\n"


def _row(
    key: PassKey, collected: CollectedStrategy, measured_at: float, result: TrialResult
) -> dict[str, Any]:
    error = result.error
    return {
        "domain": key.domain,
        "strategy_id": key.strategy_id,
        "origin": collected.origin,
        "occasion": key.occasion,
        "pass": key.number,
        "step_seconds": result.step_seconds,
        "spread": result.spread,
        "iteration_seconds": result.iteration_seconds,
        "error": None if error is None else f"{error.kind}: {error.message}",
        "launcher": result.launcher,
        "byte_scale": result.byte_scale,
        "time_scale": result.time_scale,
        "load": result.load,
        "overhead_seconds": result.overhead_seconds,
        "peak_memory_bytes": result.peak_memory_bytes,
        "sent_bytes": result.sent_bytes,
        "measured_at": round(measured_at, 3),
        "round": collected.round,
        "predicted_seconds": collected.predicted_seconds,
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions),
    }


_REPLACED = "json.replaced"


def stored_domain(folder: Path, name: str, replaced: bool = False) -> Domain | None:
    """The target's domain, where it has been probed. replaced: the domain that is measured anew."""
    return _read(_domain_file(folder, name, replaced))


def store_domain(folder: Path, name: str, domain: Domain) -> None:
    file = _domain_file(folder, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_atomically(file) as draft:
        draft.write_bytes(f"{to_json(domain)}\n".encode())


def mark_replaced(folder: Path, name: str) -> None:
    """Set the target's domain aside, if there is one and none is set aside already."""
    file, aside = _domain_file(folder, name), _domain_file(folder, name, replaced=True)
    if file.exists() and not aside.exists():
        file.rename(aside)


def remove_replaced(folder: Path, name: str) -> None:
    """Remove the domain that was set aside, once no pass belongs to it."""
    if old := stored_domain(folder, name, replaced=True):
        (folder / "domains" / f"{old.id}.json").unlink(missing_ok=True)
        _domain_file(folder, name, replaced=True).unlink()


def stored_domains(folder: Path) -> list[Domain]:
    """The probed domains of all targets, including those that were set aside."""
    files = [file for end in ("json", _REPLACED) for file in (folder / "targets").glob(f"*.{end}")]
    return [domain for file in sorted(files) if (domain := _read(file))]


def _domain_file(folder: Path, name: str, replaced: bool = False) -> Path:
    return folder / "targets" / f"{name}.{_REPLACED if replaced else 'json'}"


def _read(file: Path) -> Domain | None:
    if not file.is_file():
        return None
    return from_json(Domain, file.read_text(encoding="utf-8"), source=str(file))
