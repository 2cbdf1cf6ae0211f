"""The limit of a tuning's domain: no strategy iterates in fewer seconds."""

from sqlalchemy.orm import Session

from autosync.api.db.document_store import load_domain
from autosync.api.db.lookup import stored
from autosync.api.db.tables import TuningRow
from autosync.api.views.dashboard.remembered import remembered
from autosync.documents import from_json
from autosync.search.space import Space
from autosync.simulator.limit import Limit, iteration_limit

_KNOWN: dict[tuple[str, str], Limit] = {}


def limit_of(session: Session, tuning_id: str) -> Limit:
    """Over the strategies that the tuning may take; raises NotFound."""
    row = stored(session, TuningRow, tuning_id, "tuning")
    domain_id, space = row.domain_id, row.space
    return remembered(
        _KNOWN,
        (domain_id, space),
        lambda: iteration_limit(load_domain(session, domain_id), from_json(Space, space)),
    )
