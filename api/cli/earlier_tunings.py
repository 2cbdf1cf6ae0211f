"""What an earlier tuning measured, found by what is typed: its id, its bundle, a file of trials."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autosync.api.db.database import Database
    from autosync.api.engine.tuning_request import TuningRequest
    from autosync.search.loop.earlier_trials import EarlierTrials


def beginning_from(database: "Database", given: str, request: "TuningRequest") -> "TuningRequest":
    """The request with what is known from `given`, a file or the beginning of a tuning's id.

    Raises:
        InvalidInput: a file that is neither a bundle nor trials; or nothing in it runs here.
        NotFound: neither a file nor a tuning.
    """
    from autosync.search.loop.earlier_trials import known_from, read_earlier, usable

    if Path(given).is_file():
        known = known_from(read_earlier(given), request.domain)
    else:
        known = measured_trials(database, given)
    return replace(request, earlier=usable(known, request.domain, request.space))


def measured_trials(database: "Database", prefix: str) -> "EarlierTrials":
    """Of the tuning whose id begins so, as far as it has come. Raises as `find_tuning`."""
    from autosync.api.cli.tuning_lookup import find_tuning
    from autosync.api.engine.database_store import DatabaseStore
    from autosync.search.loop.earlier_trials import trials_of
    from autosync.search.loop.outcome import rank_measured

    tuning = find_tuning(database, prefix)
    store = DatabaseStore(database, tuning.id, tuning.fence)
    return trials_of(rank_measured(store.proposals(), store.trials()))
