"""Keys: list, make, revoke."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from autosync.api.engine.api_keys import CLIENT_NAME, MOST_DAYS, KeyScope, make_key, revoke_key
from autosync.api.http.access.guard import NEEDS_ADMIN
from autosync.api.http.dependencies import CallerDep, Cursor, DatabaseDep, Id, Limit, Reading
from autosync.api.http.openapi import refusals
from autosync.api.views.api_keys_view import api_key, api_keys
from autosync.api.views.schemas import ApiKey, ApiKeys, MadeKey
from autosync.errors import NotSupported

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[NEEDS_ADMIN])


class KeyBody(BaseModel):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=f"^{CLIENT_NAME}$", description="Of the client it is for.")]
    scope: KeyScope
    days: Annotated[int | None, Field(ge=1, le=MOST_DAYS, description="After which it ends.")] = (
        None
    )


@router.get("")
def get_keys(session: Reading, limit: Limit = 100, cursor: Cursor = None) -> ApiKeys:
    """The newest first, with those that were revoked or have expired."""
    return api_keys(session, limit, cursor)


@router.post("", status_code=201, responses=refusals(409))
def post_key(body: KeyBody, database: DatabaseDep, caller: CallerDep) -> MadeKey:
    """Make one. Refused by a service that asks nobody for a key: the first one closes it, which is
    for its operator to do."""
    if caller.way == "open":
        raise NotSupported(
            "this service asks nobody for a key, and makes none.",
            thing="keys",
            remedy="Its operator makes the first: `autosync keys add NAME --scope admin`.",
        )
    made = make_key(database, body.name, body.scope, body.days)
    with database.reading() as session:
        return MadeKey(**api_key(session, made.id).model_dump(), key=made.text)


@router.post("/{key_id}/revoke", responses=refusals(404))
def post_revocation(key_id: Id, database: DatabaseDep) -> ApiKey:
    """From now on it lets nobody in, nor do the browsers that logged in with it."""
    revoke_key(database, key_id)
    with database.reading() as session:
        return api_key(session, key_id)
