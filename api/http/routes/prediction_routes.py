"""Predictions: no trials, no worker. A service with limits answers them in bounded processes
(`autosync.api.http.heavy_requests`), one at a time of a client."""

from fastapi import APIRouter

from autosync.api.http.collective_tables import collective_table
from autosync.api.http.dependencies import LimitsDep, Reading
from autosync.api.http.named_documents import cluster_named
from autosync.api.http.openapi import refusals
from autosync.api.http.prediction_answers import (
    SAMPLING_SHARE,
    TimeLimit,
    compared_clusters,
    predicted_strategies,
)
from autosync.api.prediction_spec import (
    CollectivesSpec,
    CompareSpec,
    PredictSpec,
    RankSpec,
    ScaleSpec,
)
from autosync.api.views.schemas import (
    CollectiveTable,
    ComparedClusters,
    GivenPredictions,
    PredictedStrategies,
    ScaledJob,
)

router = APIRouter(prefix="/v1", tags=["predictions"])


@router.post("/rank", responses=refusals(404, 409))
def post_rank(body: RankSpec, session: Reading, limits: LimitsDep) -> PredictedStrategies:
    """The best strategies by prediction: hand-designed ones, sampled ones and torch's DDP."""
    limit = TimeLimit(SAMPLING_SHARE * limits.prediction_seconds)
    return predicted_strategies(session, body, limit, limits)


@router.post("/predict", responses=refusals(404, 409))
def post_predict(body: PredictSpec, session: Reading, limits: LimitsDep) -> GivenPredictions:
    """What given strategies take, by name or in full, each with an interval and its warnings."""
    from autosync.api.http.given_predictions import given_predictions  # loads numba

    return given_predictions(session, body, limits)


@router.post("/compare", responses=refusals(404, 409))
def post_compare(body: CompareSpec, session: Reading, limits: LimitsDep) -> ComparedClusters:
    """The same model on several clusters, each with its best strategy by prediction: what it costs
    to train a million samples there."""
    limit = TimeLimit(SAMPLING_SHARE * limits.prediction_seconds)
    return compared_clusters(session, body, limit, limits)


@router.post("/scale", responses=refusals(404, 409))
def post_scale(body: ScaleSpec, session: Reading) -> ScaledJob:
    """What a job reaches on other numbers of such nodes: throughput, efficiency, what binds it, and
    the knee."""
    from autosync.api.http.scaled_jobs import scaled_job  # loads numba

    return scaled_job(session, body)


@router.post("/collectives", responses=refusals(404, 409))
def post_collectives(body: CollectivesSpec, session: Reading) -> CollectiveTable:
    """What collectives take on a cluster, alone: the table that nccl-tests would print."""
    return collective_table(cluster_named(session, body.cluster), body)
