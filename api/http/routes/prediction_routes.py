"""Predictions: no trials, no worker; one at a time, for a bounded time."""

from fastapi import APIRouter

from autosync.api.http.dependencies import OneAtATime, Reading, UploadsDep
from autosync.api.http.openapi import refusals
from autosync.api.http.prediction_answers import (
    TimeLimit,
    compared_clusters,
    predicted_strategies,
)
from autosync.api.spec import CompareSpec, PredictSpec, RankSpec
from autosync.api.views.schemas import ComparedClusters, GivenPredictions, PredictedStrategies

router = APIRouter(prefix="/v1", tags=["predictions"])


@router.post("/rank", responses=refusals(404, 409))
def post_rank(
    body: RankSpec, session: Reading, turn: OneAtATime, uploads: UploadsDep
) -> PredictedStrategies:
    """The best strategies by prediction: hand-designed ones, sampled ones and torch's DDP."""
    return predicted_strategies(session, body, TimeLimit(uploads.limits.prediction_seconds))


@router.post("/predict", responses=refusals(404, 409))
def post_predict(body: PredictSpec, session: Reading, turn: OneAtATime) -> GivenPredictions:
    """What given strategies take, by name or in full, each with an interval and its warnings."""
    from autosync.api.http.given_predictions import given_predictions  # loads numba

    return given_predictions(session, body)


@router.post("/compare", responses=refusals(404, 409))
def post_compare(
    body: CompareSpec, session: Reading, turn: OneAtATime, uploads: UploadsDep
) -> ComparedClusters:
    """The same model on several clusters, each with its best strategy by prediction: what it costs
    to train a million samples there."""
    return compared_clusters(session, body, TimeLimit(uploads.limits.prediction_seconds))
