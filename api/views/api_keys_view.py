"""Keys, read for answers: all but what would let anybody in."""

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from autosync.api.db.lookup import stored
from autosync.api.db.tables import ApiKeyRow
from autosync.api.views.paging import one_page, read_cursor
from autosync.api.views.schemas import ApiKey, ApiKeys


def api_keys(session: Session, limit: int | None = None, cursor: str | None = None) -> ApiKeys:
    """The newest first. limit: by default all. cursor: `next` of the page before.

    Raises:
        InvalidInput: the cursor is none of this list.
    """
    key = (ApiKeyRow.created_at, ApiKeyRow.id)
    query = select(ApiKeyRow).order_by(*(column.desc() for column in key))
    if cursor:
        query = query.where(tuple_(*key) < read_cursor(cursor, float, str))
    if limit is not None:
        query = query.limit(limit + 1)
    rows, following = one_page(
        session.scalars(query).all(), limit, lambda row: (row.created_at, row.id)
    )
    return ApiKeys(items=[ApiKey.model_validate(row) for row in rows], next=following)


def api_key(session: Session, key_id: str) -> ApiKey:
    """Raises NotFound."""
    return ApiKey.model_validate(stored(session, ApiKeyRow, key_id, "key"))
