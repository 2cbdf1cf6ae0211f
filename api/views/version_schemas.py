"""Versions of the trained simulator and their trainings, as the service answers them."""

from typing import Literal

from pydantic import Field

from autosync.api.views.response_model import Moment, Page, ResponseModel


class SimulatorVersion(ResponseModel):
    """Shares of pairs ranked rightly, of strategies that no version learns from; `parent_...` are
    those of the version it was judged beside, on the same."""

    number: int
    simulator: str = Field(description="Its name: GET /v1/simulators/{name} is its card.")
    parent: int = Field(description="The version in use before; 0 is the bundled one.")
    accuracy: float | None
    parent_accuracy: float | None
    pick_accuracy: float | None = Field(description="Of what searches picked alone.")
    parent_pick_accuracy: float | None
    unseen_accuracy: float | None = Field(description="Of models that its like did not see.")
    promoted: bool = Field(description="At the end of its training.")
    domains: int
    trials: int
    training_id: str
    created_at: Moment


class SimulatorVersions(Page):
    """The newest first. in_use: 0 is the bundled one, which no list has."""

    in_use: int
    items: list[SimulatorVersion]


class SimulatorTraining(ResponseModel):
    """tuning_id: the tuning at whose end it began. version: what came of it."""

    id: str
    state: Literal["queued", "running", "finished", "failed"]
    tuning_id: str | None
    version: int | None
    message: str
    error: str | None
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None


class SimulatorTrainings(Page):
    items: list[SimulatorTraining]
