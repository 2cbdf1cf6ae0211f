"""Measured strategies, and the folder that holds them.

    FOLDER/domains/<id>.json    a Domain document each; the file name is its identity
    FOLDER/strategies.parquet   one row a strategy of a domain:

        domain, strategy_id     string   `Domain.id`, `Strategy.id`
        strategy                string   the Strategy document as JSON

    FOLDER/trials.parquet       one row a measuring pass of a strategy:

        domain, strategy_id     string
        origin                  string   `sampled`; the builder that made it; `pick/...`: a search
                                         chose it; `canary`: a control trial, which shows drift
        occasion                int64    1, or 2 where everything was measured again much later
        pass                    int64    1, 2, and 3 where the two differ by more than 5 %: passes
                                         go over all strategies, one after another; 0: a control
        step_seconds            double   median over the pass's iterations; null where it failed
        spread                  double   (p90 - p10) / median within the pass
        error                   string   why it failed, else null
        launcher                string   where it ran
        byte_scale              double   s of an emulated cluster, 1 on a real one
        time_scale              double   k of an emulated cluster
        load                    double   share of the CPU used by others meanwhile, or null
        round                   int64    of a pick, from 1, else null
        predicted_seconds       double   of a pick, by what chose it, else null

    and whatever else was recorded of a pass. Seconds are the domain's: measured, divided by k.

In memory the two tables are one, with a `strategy` in every row. Strategies that failed in the
first or second pass are left out of a `MeasuredDomain` and counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from autosync.atomic_write import replaced_atomically
from autosync.documents import content_hash, from_json, text_hash, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.population import Population, decode, encode
from autosync.strategy import Strategy

F64 = NDArray[np.float64]

COLUMNS = (
    "domain",
    "strategy_id",
    "strategy",
    "origin",
    "occasion",
    "pass",
    "step_seconds",
    "spread",
    "error",
    "launcher",
    "byte_scale",
    "time_scale",
    "load",
)


NOISE_OVER_DIFFERENCE = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""

SAMPLED, PICKED = "sampled", "pick/"
"""An origin, and what those of picks begin with."""
AT_RANDOM = f"{PICKED}random"
"""The origin of picks that no search chose."""


@dataclass(frozen=True, slots=True)
class MeasuredDomain:
    """n strategies of one domain, measured.

    step_seconds f64[n]: of the first pass, or of the first occasion where there were two.
    second_seconds f64[n]: of the second, NaN where it is still to come; None where nothing was
        measured twice. best_seconds f64[n]: from all passes; None: the geometric mean of these two.
    failed: strategies left out because a pass failed.
    origins, rounds: of each strategy, as in the table (0: no pick); predicted_seconds f64[n]: of a
        pick, when it was chosen, else NaN. Empty where nothing is known.
    """

    domain: Domain
    population: Population
    step_seconds: F64
    second_seconds: F64 | None = None
    best_seconds: F64 | None = None
    failed: int = 0
    origins: tuple[str, ...] = ()
    rounds: tuple[int, ...] = ()
    predicted_seconds: F64 | None = None

    def __post_init__(self) -> None:
        columns = [self.step_seconds]
        if self.best_seconds is not None:
            columns.append(self.best_seconds)
        if self.second_seconds is not None:
            once = np.isnan(self.second_seconds)
            columns.append(np.where(once, self.step_seconds, self.second_seconds))
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
    def picks(self) -> NDArray[np.int64]:
        """Indices of the strategies that searches chose, in the order of their rounds."""
        chosen = [i for i, origin in enumerate(self.origins) if origin.startswith(PICKED)]
        return np.array(sorted(chosen, key=lambda i: self.rounds[i]), dtype=np.int64)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """Which strategies a search chose by its predictions, bool[n]: picks at random are none."""
        result: NDArray[np.bool_] = np.zeros(len(self), dtype=np.bool_)
        result[[i for i in self.picks if self.origins[i] != AT_RANDOM]] = True
        return result

    @property
    def designs(self) -> NDArray[np.int64]:
        """Indices of the hand-designed strategies."""
        return np.array(
            [
                i
                for i, origin in enumerate(self.origins)
                if origin != SAMPLED and not origin.startswith(PICKED)
            ],
            dtype=np.int64,
        )

    @property
    def label_seconds(self) -> F64:
        """What models learn and are judged by, f64[n]."""
        if self.best_seconds is not None:
            return self.best_seconds
        if self.second_seconds is None:
            return self.step_seconds
        both = np.sqrt(self.step_seconds * self.second_seconds)
        result: F64 = np.where(np.isnan(both), self.step_seconds, both)
        return result

    @property
    def noise(self) -> float | None:
        """By how much, relatively, one pass differs from the other (a robust standard deviation:
        1.4826 times the median absolute difference of logarithms); None without a second one. Picks
        do not count: of the other strategies there may be occasions, which tell more."""
        if self.second_seconds is None:
            return None
        rest = np.ones(len(self), dtype=np.bool_)
        rest[self.picks] = False
        difference = np.abs(np.log(self.step_seconds / self.second_seconds))[rest]
        known = difference[np.isfinite(difference)]
        return NOISE_OVER_DIFFERENCE * float(np.median(known)) if len(known) else None


def load_dataset(folder: Path) -> list[MeasuredDomain]:
    """Every domain of a dataset, by name. A strategy counts once, by its identity.

    Raises:
        NotFound: a file is missing. InvalidInput: the table lacks a column, or a document is bad.
    """
    table = read_trials(folder)
    measured = []
    for identity, rows in table.groupby("domain", sort=True):
        measured.append(domain_of_rows(_read_domain(folder, str(identity)), rows))
    return sorted(measured, key=lambda each: each.name)


def dataset_hash(measured: Sequence[MeasuredDomain]) -> str:
    """Changes with every domain, strategy and measurement of a dataset; 32 hex digits."""
    content = [
        {
            "domain": each.domain.id,
            "seconds": [float(f"{second:.9g}") for second in each.label_seconds],
            "strategies": [decode(each.population, i, each.domain).id for i in range(len(each))],
        }
        for each in measured
    ]
    return content_hash(content)


def write_dataset(folder: Path, domains: Sequence[Domain], trials: pd.DataFrame) -> None:
    """Write the folder; `trials` has the COLUMNS. Interrupted at any point, it leaves a folder in
    which every trial has its strategy.

    Raises:
        InvalidInput: a column is missing, or a domain that trials name.
    """
    _require(trials, COLUMNS, "trials")
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
        with replaced_atomically(folder / "domains" / f"{domain.id}.json") as draft:
            draft.write_bytes(f"{to_json(domain)}\n".encode())
    identity = ["domain", "strategy_id"]
    strategies = trials[[*identity, "strategy"]].drop_duplicates(identity)
    file = folder / "strategies.parquet"
    before = _read_parquet(file) if file.exists() else strategies
    both = pd.concat([before, strategies]).drop_duplicates(identity)
    _write_parquet(both, file)
    _write_parquet(trials.drop(columns="strategy"), folder / "trials.parquet")
    if len(both) > len(strategies):
        _write_parquet(strategies, file)


def _write_parquet(table: pd.DataFrame, file: Path) -> None:
    with replaced_atomically(file) as draft:
        table.to_parquet(draft, index=False, compression="zstd")


def read_trials(folder: Path) -> pd.DataFrame:
    """Every pass of every strategy and every control trial, with its `strategy`.

    Raises:
        NotFound: a file is missing. InvalidInput: a table lacks a column or a strategy.
    """
    trials = _read_parquet(folder / "trials.parquet")
    strategies = _read_parquet(folder / "strategies.parquet")
    identity = ["domain", "strategy_id"]
    for name, table in (("trials", trials), ("strategies", strategies)):
        _require(table, (*identity, *(("strategy",) if name == "strategies" else ())), name)
    if strategies.duplicated(identity).any():
        raise InvalidInput(
            "strategies.parquet has a strategy of a domain twice.",
            thing="strategies",
            value=str(strategies.loc[strategies.duplicated(identity), "strategy_id"].iloc[0]),
            remedy="Copy the dataset whole.",
        )
    table = trials.merge(strategies, on=identity, how="left", validate="many_to_one")
    _require(table, COLUMNS, "trials")
    lost = table.loc[table["strategy"].isna(), "strategy_id"]
    if len(lost):
        raise InvalidInput(
            f"strategies.parquet lacks strategy {lost.iloc[0]}, which was measured.",
            thing="strategies",
            value=lost.iloc[0],
            remedy="Copy the dataset whole.",
        )
    return table


def _read_parquet(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise NotFound(
            f"there is no {str(file)!r}.",
            thing="dataset",
            value=str(file),
            remedy="Give the folder that holds trials.parquet, strategies.parquet and domains/.",
        )
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise InvalidInput(
            f"{str(file)!r} is no Parquet table: {error}.", thing="dataset", value=str(file)
        ) from None


def _require(table: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise InvalidInput(
            f"the table of {name} lacks the column {missing[0]!r}.",
            thing=name,
            value=missing,
            remedy=f"It needs {', '.join(columns)}.",
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
    text = file.read_text(encoding="utf-8")
    domain = from_json(Domain, text, source=file.name)
    # as it was written, by whichever version, or the same in other words
    if identity not in (text_hash(text.strip()), domain.id):
        raise InvalidInput(
            f"{str(file)!r} holds another domain, {domain.id}: the trials were not measured on it.",
            thing="domain",
            value=identity,
            remedy="Copy the dataset whole; a changed domain is measured anew.",
        )
    return domain


def domain_of_rows(domain: Domain, rows: pd.DataFrame) -> MeasuredDomain:
    """The domain of these rows of the tables, its controls left out."""
    rows = rows[rows["pass"] > 0].sort_values(["occasion", "pass"], kind="stable")
    rest = rows[~rows["origin"].str.startswith(PICKED)]  # picks have one occasion
    again = rest.loc[rest["occasion"] == 2, "strategy_id"].nunique()
    twice = again == rest["strategy_id"].nunique()
    by_strategy: dict[str, list[int]] = {}  # pandas' own groups take milliseconds each
    for row, identity in enumerate(rows["strategy_id"]):
        by_strategy.setdefault(identity, []).append(row)
    seconds = rows["step_seconds"].to_numpy(dtype=np.float64, na_value=np.nan)
    occasions = rows["occasion"].to_numpy()
    number, predicted = (_optional(rows, name) for name in ("round", "predicted_seconds"))
    firsts: list[int] = []
    found: list[tuple[float, float, float]] = []
    for _, passes in sorted(by_strategy.items()):
        by_occasion: dict[int, list[float]] = {}
        for row in passes:
            by_occasion.setdefault(int(occasions[row]), []).append(float(seconds[row]))
        measured = _two_and_best(list(by_occasion.values()), twice and len(by_occasion) > 1)
        if measured is not None:
            firsts.append(passes[0])
            found.append(measured)
    strategies = [
        from_json(Strategy, text, source="strategies") for text in rows["strategy"].iloc[firsts]
    ]
    picked = np.isfinite(number[firsts])
    first, second, best = np.array(found, dtype=np.float64).reshape(-1, 3).T
    return MeasuredDomain(
        domain,
        encode(strategies, domain),
        first,
        second if np.isfinite(second).any() else None,
        best,
        len(by_strategy) - len(firsts),
        tuple(str(origin) for origin in rows["origin"].iloc[firsts]),
        tuple(int(each) for each in np.where(picked, number[firsts], 0)),
        np.where(picked, predicted[firsts], np.nan),
    )


def _optional(rows: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column that only picks fill; NaN where there is nothing."""
    if name not in rows:
        return np.full(len(rows), np.nan)
    return rows[name].to_numpy(dtype=np.float64, na_value=np.nan)


def _two_and_best(
    by_occasion: Sequence[Sequence[float]], twice: bool
) -> tuple[float, float, float] | None:
    """Two independent measurements and the best estimate; None: it failed.

    twice: the two are occasions, else the first two passes (the second NaN where there is none).
    """
    if not all(np.isfinite(seconds[:2]).all() for seconds in by_occasion):
        return None
    medians = [float(np.exp(np.nanmedian(np.log(np.array(seconds))))) for seconds in by_occasion]
    best = float(np.exp(np.mean(np.log(medians))))
    if twice:
        return medians[0], medians[1], best
    first = by_occasion[0]
    return first[0], first[1] if len(first) > 1 else np.nan, best
