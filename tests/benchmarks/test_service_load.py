"""The made-up database of `benchmarks.service.service_load` is one that the service can show."""

from autosync.api.db import connect
from autosync.api.views import reports
from autosync.api.views.rankings import ranked_strategies
from benchmarks.service.synthetic_trials import fill


def test_the_service_shows_made_up_trials(sqlite_url: str) -> None:
    database = connect(sqlite_url)
    try:
        first, running = fill(database, (3, 0))
        with database.reading() as session:
            shown = reports.tunings(session, 10)
            assert [(each.id, each.state) for each in shown.items] == [
                (running, "running"),
                (first, "finished"),
            ]
            assert reports.tuning(session, first).progress.trials == 3
            assert len(reports.trials(session, first).items) == 3
            assert ranked_strategies(session, first).items
    finally:
        database.close()
