"""What the REST API answers about a tuning's progress."""

from pydantic import Field

from autosync.api.views.schemas import ResponseModel
from autosync.api.views.tuning_schemas import State


class TuningEvent(ResponseModel):
    """done, total: steps of the phase `kind`. at: seconds since 1970, by the database's clock."""

    id: int = Field(description="Counts up.")
    kind: str
    message: str
    done: int
    total: int
    best_seconds: float | None
    at: float


class TuningEvents(ResponseModel):
    """In the order in which they happened. state: of the tuning when they were read."""

    tuning_id: str
    state: State
    items: list[TuningEvent]
    more: bool = Field(description="Whether there are later ones: ask after the last `id`.")
