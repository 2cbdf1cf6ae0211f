"""What all answers have in common."""

from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from autosync.api.db.table_base import Base

State = Literal[
    "queued", "running", "pausing", "paused", "cancelling", "finished", "failed", "cancelled"
]


def _moment(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
"""Seconds since the epoch in the database, ISO 8601 in answers."""


class ResponseModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


@cache
def shared_names(table: type[Base], answer: type[ResponseModel]) -> tuple[str, ...]:
    """Of the columns that an answer shows under the same name."""
    return tuple(name for name in answer.model_fields if name in table.__table__.columns)


def shared_columns(row: Base, answer: type[ResponseModel]) -> dict[str, Any]:
    """The values of a row under `shared_names`."""
    return {name: getattr(row, name) for name in shared_names(type(row), answer)}


class Page(ResponseModel):
    """A part of a list."""

    next: str | None = Field(
        None, description="The `cursor` of the page after this one; null on the last."
    )
