"""What a client asks of predictions: rankings, and clusters compared."""

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from autosync.api.engine.request_checks import check_counts, check_optimizer, check_pins
from autosync.api.http.named_documents import (
    OptimizerField,
    cluster_named,
    estimated_profile,
    graph_named,
)
from autosync.domain import Domain, Profile, usual_optimizer
from autosync.search.space import Space

MOST_PROPOSALS = 30_000
MOST_CLUSTERS = 8


class PredictionBody(BaseModel):
    """A model, and how widely to look."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    graph: str = Field(
        max_length=200, description="Id of a posted graph, or the name of a bundled model."
    )
    batch_size: int | None = Field(
        None, ge=1, le=2**20, description="Of one replica; only for bundled models."
    )
    optimizer: OptimizerField = None
    proposals: int = Field(2000, ge=1, le=MOST_PROPOSALS, description="Strategies sampled.")
    seed: int = Field(0, ge=0, lt=2**53)
    simulator: str = Field(
        "learned",
        max_length=32,
        description="What predicts: a name as in POST /v1/tunings. `learned` has learned from "
        "other domains' trials, as in `autosync rank`; `timeline` from none.",
    )


class RankBody(PredictionBody):
    """A model on a cluster, and how widely to look."""

    cluster: str = Field(
        max_length=200, description="Id of a posted cluster, or the name of a bundled one."
    )
    profile: Profile | None = Field(
        None, description="Measured compute seconds; without it they are estimated."
    )
    space: Space = Field(
        Space(), description="Allowances (which choices may be taken) and pins (which must be)."
    )
    top: int = Field(10, ge=1, le=100, description="Strategies answered.")


class RentedCluster(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    cluster: str = Field(max_length=200, description="Its id, or the name of a bundled one.")
    cost_per_hour: float | None = Field(None, ge=0, le=1e9, description="Of all of it.")


class CompareBody(PredictionBody):
    """A model on several clusters: what to rent."""

    clusters: list[RentedCluster] = Field(min_length=1, max_length=MOST_CLUSTERS)


def ranked_domain(session: Session, body: RankBody) -> Domain:
    """
    Raises:
        NotFound: no such graph or cluster. InvalidInput: what does not fit the graph.
        NotSupported: a pin that cannot be run.
    """
    domain = domain_named(session, body, body.cluster, body.profile)
    check_counts(body.space)
    check_pins(body.space, domain)
    return domain


def domain_named(
    session: Session, body: PredictionBody, cluster_name: str, profile: Profile | None = None
) -> Domain:
    """
    Raises:
        NotFound: no such graph or cluster. InvalidInput: the profile is for another graph, or
            nobody knows the optimizer.
    """
    graph = graph_named(session, body.graph, body.batch_size)
    cluster = cluster_named(session, cluster_name)
    profile = profile or estimated_profile(graph, cluster)
    domain = Domain(graph, cluster, profile, body.optimizer or usual_optimizer(graph))
    check_optimizer(domain)
    return domain
