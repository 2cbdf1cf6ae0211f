"""What workers and the service say to each other: claims of tunings, and what comes of them.

Strategies, trials and answers travel as the documents that they are.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from autosync.api.engine.leases import EndReason
from autosync.api.views.schemas import ResponseModel
from autosync.documents import STRICT
from autosync.search.loop.tuning_store import Proposal
from autosync.trials.contract import TrialResult
from autosync.trials.request_names import LauncherName

LONGEST_LEASE_SECONDS = 300.0
LONGEST_TEXT = 20_000
COUNT = Field(0, ge=0, lt=2**31)

WorkerName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
LeaseSeconds = Annotated[float, Field(gt=0, le=LONGEST_LEASE_SECONDS)]


class WorkBody(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class LivingWorker(WorkBody):
    """gpus: of its machine. version: of its autosync, which must be the service's."""

    worker: WorkerName
    version: str = Field(max_length=80)
    lease_seconds: LeaseSeconds
    gpus: int = COUNT


class ClaimingWorker(LivingWorker):
    """launchers: whose tunings it takes."""

    launchers: list[LauncherName]


class Renewal(WorkBody):
    """version: of the worker's autosync: the service may have become another one meanwhile."""

    version: str = Field(max_length=80)
    lease_seconds: LeaseSeconds


class GivenUp(WorkBody):
    reason: EndReason


class Failure(WorkBody):
    error: str = Field(max_length=LONGEST_TEXT)


class Progress(WorkBody):
    """As `autosync.search.loop.outcome.TuningEvent`."""

    kind: Literal["waiting", "opening", "ranking", "search", "confirm", "done"]
    message: str = Field(max_length=LONGEST_TEXT)
    done: int = COUNT
    total: int = COUNT
    best_seconds: float | None = None


class ClaimedTuning(ResponseModel):
    """fence: the number of the claim; what is written names it."""

    tuning_id: str
    fence: int


class HeldClaim(ResponseModel):
    reason: EndReason | None = Field(description="Why the work is to end; null while it goes on.")


class Spent(ResponseModel):
    """As `autosync.api.engine.database_store.TimeSpent`."""

    held_seconds: float
    limit_seconds: float | None


class TrainedFiles(ResponseModel):
    """A trained simulator. card: JSON. weights: safetensors, in base64."""

    name: str
    card: str
    weights: str


@dataclass(frozen=True, slots=True)
class EarlierWork:
    """A part of what a tuning proposed and measured before, each in its order."""

    proposals: tuple[Proposal, ...]
    trials: tuple[TrialResult, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class ProposedTrials:
    """A round's proposals, stored whole or not at all."""

    proposals: tuple[Proposal, ...]
    __pydantic_config__: ClassVar[ConfigDict] = STRICT
