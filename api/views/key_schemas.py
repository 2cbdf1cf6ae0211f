"""What is told of keys."""

from typing import Literal

from autosync.api.views.response_model import Moment, Page, ResponseModel


class ApiKey(ResponseModel):
    """name: of the client; keys of one name share its queue and limits. last_used_at: to some
    minutes. A key with `revoked_at`, or with a past `expires_at`, lets nobody in."""

    id: str
    name: str
    scope: Literal["read", "tune", "admin"]
    created_at: Moment
    last_used_at: Moment | None
    expires_at: Moment | None
    revoked_at: Moment | None


class ApiKeys(Page):
    items: list[ApiKey]


class MadeKey(ApiKey):
    """key: what the client shows; nobody can read it again."""

    key: str
