"""Measured strategies, and the folder they are kept in.

    FOLDER/domains/<id>.json    a Domain document each; the file name is its identity
    FOLDER/trials.parquet       one row a measuring pass of a strategy:

        domain          string   the domain's id
        strategy_id     string   `Strategy.id`
        strategy        string   the Strategy document as JSON
        origin          string   `sampled`, or the builder that made it
        pass            int64    1, 2, ...: passes go over all strategies, one after another
        step_seconds    double   median over the pass's iterations; null where the trial failed
        spread          double   (p90 - p10) / median within the pass
        error           string   why it failed, else null
        launcher        string   where it ran
        byte_scale      double   s of the testbed, 1 on a real cluster
        time_scale      double   k of the testbed
        load            double   share of the CPU used by others meanwhile, or null

Strategies that failed in the first or second pass are left out of an evaluation and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.population import Population, encode
from autosync.strategy import Strategy

F64 = NDArray[np.float64]

COLUMNS = (
    "domain",
    "strategy_id",
    "strategy",
    "origin",
    "pass",
    "step_seconds",
    "spread",
    "error",
    "launcher",
    "byte_scale",
    "time_scale",
    "load",
)


@dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """n strategies of one domain, measured.

    step_seconds f64[n]: of the first pass. second_seconds f64[n]: of the second, or None where
        there was one pass only. failed: strategies left out because a pass failed.
    """

    domain: Domain
    population: Population
    step_seconds: F64
    second_seconds: F64 | None = None
    failed: int = 0

    def __post_init__(self) -> None:
        columns = [self.step_seconds]
        columns += [] if self.second_seconds is None else [self.second_seconds]
        for seconds in columns:
            if len(seconds) != len(self.population) or not (np.asarray(seconds) > 0).all():
                raise InvalidInput(
                    f"{len(self.population)} strategies have {len(seconds)} measurements, not all "
                    "of them positive.",
                    thing="step_seconds",
                    value=len(seconds),
                    remedy="Give one positive number of seconds for each strategy.",
                )

    def __len__(self) -> int:
        return len(self.step_seconds)

    @property
    def name(self) -> str:
        return f"{self.domain.graph.name}, {self.domain.cluster.name}"

    @property
    def label_seconds(self) -> F64:
        """What models learn and are judged by: the geometric mean of the passes, f64[n]."""
        if self.second_seconds is None:
            return self.step_seconds
        result: F64 = np.sqrt(self.step_seconds * self.second_seconds)
        return result

    @property
    def noise(self) -> float | None:
        """By how much, relatively, one pass differs from the other (a robust standard deviation:
        1.4826 times the median absolute difference of logarithms); None with a single pass."""
        if self.second_seconds is None:
            return None
        difference = np.abs(np.log(self.step_seconds / self.second_seconds))
        return 1.4826 * float(np.median(difference))


def measured_of(
    domain: Domain,
    strategies: Sequence[Strategy],
    step_seconds: F64,
    second_seconds: F64 | None = None,
) -> MeasuredDomain:
    return MeasuredDomain(domain, encode(list(strategies), domain), step_seconds, second_seconds)


def load_dataset(folder: Path) -> list[MeasuredDomain]:
    """Every domain of a dataset, by name. A strategy counts once, by its identity.

    Raises:
        NotFound: a file is missing. InvalidInput: the table lacks a column, or a document is bad.
    """
    table = _read_trials(folder)
    measured = []
    for identity, rows in table.groupby("domain", sort=True):
        measured.append(_measured(_read_domain(folder, str(identity)), rows))
    return sorted(measured, key=lambda each: each.name)


def write_dataset(folder: Path, domains: Sequence[Domain], trials: pd.DataFrame) -> None:
    """Write the folder; `trials` has the COLUMNS.

    Raises:
        InvalidInput: a column is missing, or a domain that trials name.
    """
    _check_columns(trials)
    known = {domain.id for domain in domains}
    for identity in sorted(set(trials["domain"]) - known):
        raise InvalidInput(
            f"trials name domain {identity}, which was not given.",
            thing="domain",
            value=identity,
            remedy="Give every measured domain.",
        )
    (folder / "domains").mkdir(parents=True, exist_ok=True)
    for domain in domains:
        (folder / "domains" / f"{domain.id}.json").write_text(to_json(domain) + "\n")
    trials[list(COLUMNS)].to_parquet(folder / "trials.parquet", index=False)


def _read_trials(folder: Path) -> pd.DataFrame:
    file = folder / "trials.parquet"
    if not file.is_file():
        raise NotFound(
            f"there is no {str(file)!r}.",
            thing="dataset",
            value=str(file),
            remedy="Give the folder that holds trials.parquet and domains/.",
        )
    table = pd.read_parquet(file)
    _check_columns(table)
    return table


def _check_columns(table: pd.DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InvalidInput(
            f"the table of trials lacks the column {missing[0]!r}.",
            thing="trials",
            value=missing,
            remedy=f"It needs {', '.join(COLUMNS)}.",
        )


def _read_domain(folder: Path, identity: str) -> Domain:
    file = folder / "domains" / f"{identity}.json"
    if not file.is_file():
        raise NotFound(
            f"trials name domain {identity}, but there is no {str(file)!r}.",
            thing="domain",
            value=identity,
            remedy="Copy the dataset whole.",
        )
    return from_json(Domain, file.read_text(), source=file.name)


def _measured(domain: Domain, rows: pd.DataFrame) -> MeasuredDomain:
    strategies, first, second = [], [], []
    failed = 0
    for _, passes in rows.sort_values("pass", kind="stable").groupby("strategy_id", sort=True):
        seconds = [float(value) for value in passes["step_seconds"]]
        if not all(np.isfinite(value) for value in seconds[:2]):
            failed += 1
            continue
        strategies.append(from_json(Strategy, passes["strategy"].iloc[0], source="trials.parquet"))
        first.append(seconds[0])
        second.append(seconds[1] if len(seconds) > 1 else np.nan)
    later = np.array(second)
    return MeasuredDomain(
        domain,
        encode(strategies, domain),
        np.array(first),
        later if len(later) and np.isfinite(later).all() else None,
        failed,
    )
