"""Answers that only the REST API gives. Those that are read from the database are in `api/views`,
and documents have schemas of their own."""

from pydantic import BaseModel

from autosync.api.views.response_model import ResponseModel, State
from autosync.strategy import Strategy


class StoredDocument(ResponseModel):
    """A document that was posted; posting it again gives the same id."""

    id: str
    name: str
    location: str


class ChangedTuning(ResponseModel):
    """A tuning that was asked to stop or to go on, and its state from then on."""

    id: str
    state: State


class PredictedStrategy(BaseModel):
    """predicted_speedup: DDP's predicted time by this one's. predicted_peak_bytes: of the rank that
    needs most memory."""

    rank: int
    words: str
    origin: str
    predicted_seconds: float
    predicted_speedup: float
    predicted_peak_bytes: int
    strategy_id: str
    strategy: Strategy


class PredictedStrategies(BaseModel):
    """The fastest first. Predictions rank; a tuning measures. limit_seconds: of an iteration, which
    no strategy on this cluster beats. placements_cut: a request's time ended before all placements
    that the space has were looked at; those found until then are listed."""

    domain_id: str
    simulator: str
    proposals: int
    ddp_seconds: float
    limit_seconds: float
    placements_cut: bool
    items: list[PredictedStrategy]


class ComparedCluster(BaseModel):
    """A cluster with its best strategy by prediction; samples_per_second: over all devices.
    cost_per_million_samples: in the currency of `cost_per_hour`; null where none was given."""

    cluster: str
    world_size: int
    predicted_seconds: float
    ddp_seconds: float
    words: str
    samples_per_second: float
    cost_per_million_samples: float | None


class ComparedClusters(BaseModel):
    """The cheapest first, where all have a cost; else the fastest."""

    graph: str
    simulator: str
    items: list[ComparedCluster]


class Problem(BaseModel):
    """application/problem+json (RFC 9457): thing, value and remedy are what to mend."""

    type: str
    title: str
    status: int
    detail: str
    thing: str = ""
    value: str = ""
    remedy: str = ""
