"""Whether the service is well, and how much it has to do."""

from importlib.metadata import version
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autosync.api.db.schema_migration import current_revision
from autosync.api.db.tables import ACTIVE, TuningRow
from autosync.api.views.response_model import ResponseModel


class Health(ResponseModel):
    status: Literal["ok"]
    version: str
    database: str
    schema_revision: str
    queued: int
    running: int


def health(session: Session) -> Health:
    """Answers when the database does."""
    count = select(func.count()).select_from(TuningRow)
    return Health(
        status="ok",
        version=version("autosync"),
        database=session.get_bind().dialect.name,
        schema_revision=current_revision(session.connection()) or "",
        queued=session.scalar(count.where(TuningRow.state == "queued")) or 0,
        running=session.scalar(count.where(TuningRow.state.in_(ACTIVE))) or 0,
    )
