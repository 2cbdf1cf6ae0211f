"""Answers that only the REST API gives. Those that are read from the database are in `api/views`,
and documents have schemas of their own."""

from pydantic import BaseModel

from autosync.api.views.response_model import ResponseModel, State


class StoredDocument(ResponseModel):
    """A document that was posted; posting it again gives the same id."""

    id: str
    name: str
    location: str


class CancelledTuning(ResponseModel):
    id: str
    state: State


class Problem(BaseModel):
    """application/problem+json (RFC 9457): thing, value and remedy are what to mend."""

    type: str
    title: str
    status: int
    detail: str
    thing: str = ""
    value: str = ""
    remedy: str = ""
