"""Measured strategies, and the folder that holds them.

    FOLDER/domains/<id>.json    a Domain document each; the file name is its identity
    FOLDER/strategies.parquet   one row a strategy of a domain:

        domain, strategy_id     string   `Domain.id`, `Strategy.id`
        strategy                string   the Strategy document as JSON

    FOLDER/trials.parquet       one row a measuring pass of a strategy:

        domain, strategy_id     string
        origin                  string   `sampled`, the builder that made it, `pick/...`: a search
                                         chose it, or `canary`: a control trial, by which drift is
                                         noticed
        occasion                int64    1, or 2 where everything was measured again much later
        pass                    int64    1, 2, and 3 where the two differ by more than 5 %: passes
                                         go over all strategies, one after another; 0: a control
        step_seconds            double   median over the pass's iterations; null where it failed
        spread                  double   (p90 - p10) / median within the pass
        error                   string   why it failed, else null
        launcher                string   where it ran
        byte_scale              double   s of the testbed, 1 on a real cluster
        time_scale              double   k of the testbed
        load                    double   share of the CPU used by others meanwhile, or null
        round                   int64    of a pick, from 1, else null
        predicted_seconds       double   of a pick, by what chose it, else null

    and whatever else was recorded of a pass. Seconds are the domain's: measured, divided by k.

In memory the two tables are one, with a `strategy` in every row. Strategies that failed in the
first or second pass are left out of an evaluation and counted.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from autosync.atomic_write import replaced_atomically
from autosync.documents import from_json, to_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound
from autosync.simulator.evaluation.measured_domain import MeasuredDomain, domain_of_rows

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


def write_dataset(folder: Path, domains: Sequence[Domain], trials: pd.DataFrame) -> None:
    """Write the folder; `trials` has the COLUMNS. Interrupted at any point, it leaves a folder in
    which every trial has its strategy.

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
        with replaced_atomically(folder / "domains" / f"{domain.id}.json") as draft:
            draft.write_text(to_json(domain) + "\n")
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
    _check_columns(table)
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


def _check_columns(table: pd.DataFrame) -> None:
    _require(table, COLUMNS, "trials")


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
    return from_json(Domain, file.read_text(), source=file.name)
