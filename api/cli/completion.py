"""What a shell completes: names of bundled models, clusters and strategies, and ids of tunings.

A shell asks at each press of Tab: nothing here loads torch, and a database is read by sqlite3. An
empty answer leaves the word to the shell, which completes file names.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import typer

from autosync.environment import DATABASE_URL_VARIABLE

SQLITE = "sqlite:///"
MOST = 200
"""Ids offered, the newest."""

Offered = list[tuple[str, str]]
"""Words, and what is said beside them."""


def complete_model(incomplete: str) -> list[str]:
    return [name for name in _bundled("models", ".json.gz") if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    return [name for name in _bundled("clusters", ".yaml") if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    from autosync.cluster.devices import DEVICE_TYPES

    return [name for name in DEVICE_TYPES if name.startswith(incomplete)]


def complete_design(incomplete: str) -> list[str]:
    """Hand-designed strategies and published methods."""
    from autosync.search.designs.design_table import DESIGNS, TORCH_DESIGNS
    from autosync.search.designs.published_methods import METHODS

    names = (*DESIGNS, *TORCH_DESIGNS, *METHODS)
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_tuning(ctx: typer.Context, incomplete: str) -> Offered:
    """Ids of the tunings of the database that --db or the environment names."""
    query = (
        "SELECT jobs.id, graphs.name || ', ' || jobs.state FROM jobs "
        "JOIN domains ON domains.id = jobs.domain_id "
        "JOIN graphs ON graphs.id = domains.graph_id "
        "WHERE jobs.id LIKE ? ORDER BY jobs.created_at DESC LIMIT ?"
    )
    return [(each[:8], said) for each, said in _rows(ctx, query, _beginning(incomplete))]


def complete_strategy(ctx: typer.Context, incomplete: str) -> Offered:
    """Ids of the strategies that the tuning before it has proposed, the fastest predicted first."""
    query = (
        "SELECT strategy_id, min(origin) FROM proposals WHERE tuning_id LIKE ? "
        "AND strategy_id LIKE ? GROUP BY strategy_id ORDER BY min(predicted_seconds) LIMIT ?"
    )
    # an option whose value is still to come ends the parsing before arguments have their names
    typed = ctx.params.get("tuning") or next(iter(ctx.args), "-")
    tuning = _beginning(str(typed))
    return [(each[:12], said) for each, said in _rows(ctx, query, tuning, _beginning(incomplete))]


def _bundled(folder: str, ending: str) -> Iterator[str]:
    from autosync.bundled_data import data_folder

    files = sorted(data_folder(folder).glob(f"*{ending}"))
    yield from (file.name.removesuffix(ending) for file in files)


def _beginning(typed: str) -> str:
    """The pattern of ids that begin so; of none where it is no beginning of one."""
    return f"{typed.lower()}%" if all(c in "0123456789abcdef" for c in typed.lower()) else "-"


def _rows(ctx: typer.Context, query: str, *patterns: str) -> Offered:
    """None of a database that is no SQLite file, or cannot be read: a Tab reports no error."""
    from autosync.api.cli.options import DEFAULT_DATABASE  # which offers these completions

    given = ctx.params.get("db") or os.environ.get(DATABASE_URL_VARIABLE) or DEFAULT_DATABASE
    if ctx.params.get("url") or not str(given).startswith(SQLITE):
        return []
    path = Path(str(given).removeprefix(SQLITE)).absolute()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(query, (*patterns, MOST)).fetchall()
    except sqlite3.Error:
        return []
    return [(str(word), str(said)) for word, said in found]
