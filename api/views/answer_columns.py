"""What a row of a table and an answer have in common. The client reads answers and no tables, so
this is no part of what answers are."""

from functools import cache
from typing import Any

from autosync.api.db.tables import Base
from autosync.api.views.schemas import ResponseModel


@cache
def shared_names(table: type[Base], answer: type[ResponseModel]) -> tuple[str, ...]:
    """Of the columns that an answer shows under the same name."""
    return tuple(name for name in answer.model_fields if name in table.__table__.columns)


def shared_columns(row: Base, answer: type[ResponseModel]) -> dict[str, Any]:
    """The values of a row under `shared_names`."""
    return {name: getattr(row, name) for name in shared_names(type(row), answer)}
