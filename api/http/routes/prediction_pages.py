"""The page of predictions: a form, and what is predicted of a job on a cluster one need not have.

The answer is shown at once, with a place for each part; parts are made in a bounded process
(`autosync.api.http.heavy_requests`) and fill in."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from sqlalchemy.orm import Session

from autosync.api.http.collective_tables import collective_table
from autosync.api.http.dependencies import LimitsDep, Reading
from autosync.api.http.named_documents import check_names, cluster_named
from autosync.api.http.page_templates import show
from autosync.api.prediction_spec import CollectivesSpec, PredictSpec, ScaleSpec
from autosync.api.spec import checked
from autosync.api.views import documents
from autosync.cluster.collective_curve import CollectiveOperation
from autosync.compute_settings import PRECISIONS
from autosync.errors import AutosyncError
from autosync.optimizers import OPTIMIZERS

NEWEST = 50
"""Stored models and clusters that the form offers."""
SCALED = ("ddp", "fsdp2", "zero1", "dear", "hierarchical_all_reduce")
"""Strategies that the form offers on more nodes."""
SHOWN = 12
"""Strategies above the fold."""
OF_JOB = (
    *("graph", "cluster", "batch_size", "optimizer", "step_seconds", "precision", "recompute"),
    "accumulate",
)
"""Fields of the form that strategies and numbers of nodes are predicted with alike."""
PARTS = {
    "strategies": "Strategies are",
    "scale": "More nodes are",
    "collectives": "Collectives are",
}
"""Of an answer, in the order in which they are made; the beginning of what stands there before."""
Words = Annotated[str, Query(max_length=200)]

router = APIRouter(prefix="/predict", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class AskedJob:
    """Fields of the form, empty where the default is meant."""

    graph: Words = "gpt2_medium"
    cluster: Words = "aws-p5-48xlarge-x4"
    batch_size: Words = ""
    optimizer: Words = ""
    step_seconds: Words = ""
    precision: Words = ""
    recompute: Words = ""
    accumulate: Words = ""
    strategy: Words = ""
    nodes: Words = ""
    operation: Words = ""

    @property
    def given(self) -> dict[str, str]:
        """Without fields that are empty."""
        return {name: value for name, value in asdict(self).items() if value}

    @property
    def strategies_spec(self) -> PredictSpec:
        return checked(PredictSpec, self._fields(OF_JOB))

    @property
    def scale_spec(self) -> ScaleSpec:
        nodes = {"nodes": self.nodes.split(",")} if self.nodes else {}
        return checked(ScaleSpec, {**self._fields((*OF_JOB, "strategy")), **nodes})

    @property
    def collectives_spec(self) -> CollectivesSpec:
        return checked(CollectivesSpec, self._fields(("cluster", "operation")))

    def _fields(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if name in names}


Asked = Annotated[AskedJob, Depends()]


async def prepare(request: Request) -> None:
    """Start the process that its reader will ask for a prediction, where there are such."""
    if request.app.state.processes is not None:
        request.app.state.processes.prepare("predicting")


ASKED_NEXT = [Depends(prepare)]


@router.get("", dependencies=ASKED_NEXT)
def prediction_form(request: Request, session: Reading, asked: Asked) -> Response:
    return show(request, "predict/predict.html", _form(session, asked))


@router.get("/answer", dependencies=ASKED_NEXT)
def prediction_page(request: Request, session: Reading, asked: Asked) -> Response:
    """The form, and a place for each part; refused where a field is wrong."""
    shown = _form(session, asked)
    try:
        _ = asked.strategies_spec, asked.scale_spec, asked.collectives_spec
        check_names(session, asked.graph, asked.cluster)
    except AutosyncError as error:
        return show(request, "predict/predict.html", {**shown, "refused": error}, 422)
    return show(request, "predict/predict.html", {**shown, "asked": asked.given, "parts": PARTS})


@router.get("/strategies")
def strategies_part(
    request: Request, session: Reading, limits: LimitsDep, asked: Asked
) -> Response:
    """Those that fit the devices first, the fastest on top."""
    from autosync.api.http.given_predictions import given_predictions  # loads numba

    found = given_predictions(session, asked.strategies_spec, limits).items
    shown = {
        "strategies": sorted(found, key=lambda each: (not each.fits, each.predicted_seconds)),
        "shown": SHOWN,
        "warnings": found[0].warnings,
    }
    return show(request, "predict/strategies.html", shown)


@router.get("/scale")
def scale_part(request: Request, session: Reading, asked: Asked) -> Response:
    from autosync.api.http.scaled_jobs import scaled_job  # loads numba
    from autosync.api.views.dashboard.prediction_charts import scale_chart

    found = scaled_job(session, asked.scale_spec)
    shown = {"chart": scale_chart(found), "warnings": found.warnings}
    return show(request, "predict/chart.html", shown)


@router.get("/collectives")
def collectives_part(request: Request, session: Reading, asked: Asked) -> Response:
    from autosync.api.views.dashboard.prediction_charts import collective_chart

    found = collective_table(cluster_named(session, asked.cluster), asked.collectives_spec)
    warnings = [each.removesuffix(".") for each in found.warnings]
    return show(
        request, "predict/chart.html", {"chart": collective_chart(found), "warnings": warnings}
    )


def _form(session: Session, asked: AskedJob) -> dict[str, Any]:
    return {
        "form": asked,
        "graphs": documents.graphs(session, NEWEST, chosen=asked.graph),
        "clusters": documents.clusters(session, NEWEST, chosen=asked.cluster),
        "optimizers": OPTIMIZERS,
        "precisions": PRECISIONS,
        "scaled": SCALED,
        "operations": get_args(CollectiveOperation),
    }
