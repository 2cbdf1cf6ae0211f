"""What the first requests would otherwise wait for: templates and queries are compiled before the
service says that it is ready."""

from autosync.api.db.database import Database
from autosync.api.http.page_templates import compile_templates
from autosync.api.views import reports, stored_documents
from autosync.api.views.dashboard.tuning_list import TuningFilter, tuning_list
from autosync.api.views.rankings import ranked_strategies
from autosync.api.views.service_health import health


def warm_up(database: Database) -> None:
    """Reads one row of each list that dashboards and clients begin with."""
    compile_templates()
    with database.reading() as session:
        health(session)
        tuning_list(session, TuningFilter())
        stored_documents.offered_graphs(session, 1, "")
        stored_documents.offered_clusters(session, 1, "")
        for tuning in reports.tunings(session, 1).items:
            ranked_strategies(session, tuning.id, 1)
            reports.trials(session, tuning.id, 1)
