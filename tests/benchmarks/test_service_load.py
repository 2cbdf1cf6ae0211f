"""The made-up database of `benchmarks.service.service_load` is one that the service can show."""

from autosync.api.db import Database
from autosync.api.views import reports
from autosync.api.views.rankings import ranked_strategies
from benchmarks.service.synthetic_trials import fill


def test_the_service_shows_made_up_trials(sqlite: Database) -> None:
    first, running = fill(sqlite, (3, 0))
    with sqlite.reading() as session:
        shown = [(each.id, each.state) for each in reports.tunings(session, 10).items]
        assert shown == [(running, "running"), (first, "finished")]
        assert reports.tuning(session, first).progress.trials == 3
        assert len(reports.trials(session, first).items) == 3
        assert ranked_strategies(session, first).items
