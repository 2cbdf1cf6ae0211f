"""What the REST API answers with: documents, simulators, keys, predictions and the service.

Answers about tunings are in `tuning_schemas`.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from autosync.api.spec import KeyScope
from autosync.strategy import Strategy


def _moment(value: object) -> object:
    return datetime.fromtimestamp(value, UTC) if isinstance(value, float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
"""Seconds since the epoch in the database, ISO 8601 in answers."""


class ResponseModel(BaseModel):
    model_config = ConfigDict(from_attributes=True)


def columns_of(row: Any, answer: type[ResponseModel]) -> dict[str, Any]:
    """Of a row of a table, or of the table, what the answer has under the same name."""
    columns = row.__table__.columns
    return {name: getattr(row, name) for name in answer.model_fields if name in columns}


class Page(ResponseModel):
    """A part of a list."""

    next: str | None = Field(
        None, description="The `cursor` of the page after this one; null on the last."
    )


class GraphSummary(ResponseModel):
    id: str
    name: str
    batch_size: int
    variables: int
    parameters: int
    size_bytes: int
    created_at: Moment


class BundledModel(ResponseModel):
    name: str
    title: str
    batch_size: int
    parameters: int


class Graphs(Page):
    items: list[GraphSummary]
    bundled: list[BundledModel]


class ClusterSummary(ResponseModel):
    id: str
    name: str
    nodes: int
    world_size: int
    created_at: Moment


class Clusters(Page):
    items: list[ClusterSummary]
    bundled: list[str]


class TrainedSimulator(ResponseModel):
    """domains, trials: what it learned from. accuracy: pairs of strategies it had not seen that it
    ranked correctly; `unseen` says which. feature_version: of what it reads; a service uses only
    those of its own version."""

    name: str
    kind: str
    feature_version: int
    domains: int
    trials: int
    accuracy: float | None
    unseen: str
    size_bytes: int
    created_at: Moment


class Simulators(Page):
    items: list[TrainedSimulator]
    bundled: list[str]


class ApiKey(ResponseModel):
    """name: of the client; keys of one name share its queue and limits. last_used_at: to some
    minutes. A key with `revoked_at`, or with a past `expires_at`, lets nobody in."""

    id: str
    name: str
    scope: KeyScope
    created_at: Moment
    last_used_at: Moment | None
    expires_at: Moment | None
    revoked_at: Moment | None


class ApiKeys(Page):
    items: list[ApiKey]


class MadeKey(ApiKey):
    """key: what the client shows; nobody can read it again."""

    key: str


class SimulatorVersion(ResponseModel):
    """Shares of pairs ranked correctly, of strategies that no version learns from; `parent_...` are
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


class StoredDocument(ResponseModel):
    """A document that was posted; posting it again gives the same id."""

    id: str
    name: str
    location: str


class PredictedInterval(ResponseModel):
    """low_seconds, high_seconds: between which nine of ten measurements are expected. binding: what
    shortens the iteration most where it is faster: compute, startups of messages or a link."""

    low_seconds: float
    high_seconds: float
    binding: str


class PredictedStrategy(PredictedInterval):
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
    that the space has were looked at; those found until then are listed. constants, warnings: as of
    `GivenPrediction`; the latter also say where modules may be placed but cannot be."""

    domain_id: str
    simulator: str
    proposals: int
    ddp_seconds: float
    limit_seconds: float
    placements_cut: bool
    constants: str | None
    warnings: list[str]
    items: list[PredictedStrategy]


class GivenPrediction(PredictedInterval):
    """Of one strategy. samples_per_second: over all devices. percent_of_limit: 100 cannot be
    beaten. engine_seconds: what its engine spends on each message. predicted_peak_bytes: of the
    rank that needs most. fits: whether every device has what its rank needs. warnings: why the
    interval is wide."""

    strategy: str
    predicted_seconds: float
    samples_per_second: float
    limit_seconds: float
    percent_of_limit: float
    engine_seconds: float
    constants: str | None
    predicted_peak_bytes: int
    fits: bool
    warnings: list[str]


class GivenPredictions(BaseModel):
    """In the order of the request. constants: the name of the fitted ones in use, with how they
    were fitted and what of them was measured; null where there are none."""

    constants: str | None
    constants_fitted: str
    constants_measured: str
    items: list[GivenPrediction]


class ComparedCluster(PredictedInterval):
    """A cluster with its best strategy by prediction. samples_per_second: over all devices.
    requested: its id or name, as in the request: several clusters may have the name `cluster`.
    cost_per_million_samples: in the currency of `cost_per_hour`; null where none was given.
    warnings: as of `GivenPrediction`."""

    cluster: str
    requested: str
    world_size: int
    predicted_seconds: float
    ddp_seconds: float
    words: str
    samples_per_second: float
    cost_per_million_samples: float | None
    warnings: list[str]


class LeftOutCluster(BaseModel):
    """One whose devices hold no strategy. requested: as of `ComparedCluster`."""

    requested: str
    reason: str


class ComparedClusters(BaseModel):
    """The cheapest first, where all have a cost; else the fastest."""

    graph: str
    simulator: str
    items: list[ComparedCluster]
    left_out: list[LeftOutCluster] = Field([], description="Their memory holds no strategy.")


class ScaledPoint(PredictedInterval):
    """Of one number of nodes. samples_per_second: over all ranks. efficiency: of what the ranks
    would reach without waiting for messages. usd_per_hour, samples_per_dollar: null where the
    cluster states no price."""

    nodes: int
    ranks: int
    step_seconds: float
    samples_per_second: float
    efficiency: float
    usd_per_hour: float | None
    samples_per_dollar: float | None


class ScaledJob(BaseModel):
    """points: the fewest nodes first. knee_nodes: beyond which a further node brings less than half
    of what the first brought; null where none does. warnings: why intervals are wide, and on how
    many nodes the strategy does not fit."""

    points: list[ScaledPoint]
    knee_nodes: int | None
    warnings: list[str]


class CollectiveRow(BaseModel):
    """Of one size of a message; between low_seconds and high_seconds nine of ten are expected.
    algorithm, protocol: NCCL's; empty on gloo. binding: what takes most of the time: the startup,
    GPU links, NICs, the spine, channels, or a link by its name. algbw, busbw: as nccl-tests define
    them."""

    size_bytes: float
    seconds: float
    low_seconds: float
    high_seconds: float
    algbw_gbytes_per_second: float
    busbw_gbytes_per_second: float
    algorithm: str
    protocol: str
    binding: str


class CollectiveTable(BaseModel):
    """What nccl-tests would print. warnings: what the times rest on."""

    operation: str
    ranks: int
    nodes: int
    backend: str
    rows: list[CollectiveRow]
    warnings: list[str]


class MeasuredCurve(BaseModel):
    """A collective that a log measured. warning: where it does not count as it stands; empty where
    it does."""

    curve: str
    least_bytes: float
    most_bytes: float
    least_seconds: float
    most_busbw_gbytes_per_second: float
    warning: str


class CalibratedCluster(StoredDocument):
    """The cluster with the curves of the logs, stored under an id of its own."""

    curves: list[MeasuredCurve]
    warnings: list[str]


class Health(ResponseModel):
    status: Literal["ok"]
    version: str
    database: str
    schema_revision: str
    queued: int
    running: int


class Readiness(ResponseModel):
    """Whether what is queued will be worked on. oldest_queued_seconds: how long the tuning that
    has waited longest has waited; 0 where none waits."""

    status: Literal["ready", "no worker lives"]
    workers: int
    queued: int
    oldest_queued_seconds: float


class Problem(BaseModel):
    """application/problem+json (RFC 9457): thing, value and remedy are what to mend."""

    type: str
    title: str
    status: int
    detail: str
    thing: str = ""
    value: str = ""
    remedy: str = ""
