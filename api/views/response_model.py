"""What all answers have in common."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

State = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "finished", "failed", "cancelled"
]


def _moment(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
"""Seconds since the epoch in the database, ISO 8601 in answers."""


class ResponseModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Page(ResponseModel):
    """A part of a list."""

    next: str | None = Field(
        None, description="The `cursor` of the page after this one; null on the last."
    )
