"""What may be asked of predictions: jobs, strategies, numbers of nodes, collectives, what to rent.

As `autosync.api.spec`, from whose models of a model and a cluster these are made."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from autosync.api.spec import DomainSpec, ModelSpec, PlacedModelSpec
from autosync.cluster.collective_curve import MOST_SIZES, CollectiveOperation
from autosync.compute_settings import ComputeSettings, Precision
from autosync.strategy import Strategy

MOST_PROPOSALS = 30_000
MOST_CLUSTERS = 8
MOST_GIVEN = 64
LONGEST_STEP_SECONDS = 86_400.0
MOST_NODES, MOST_NODE_COUNTS = 16_384, 32
"""Nodes of a prediction, and numbers of nodes of one request."""
LARGEST_MESSAGE_BYTES = float(1 << 40)


class JobSpec(ModelSpec):
    """A model as a job runs it, which is predicted before it runs."""

    precision: Precision = Field(
        "recorded",
        description="In which a model that was recorded in float32 runs: tf32 computes matrix "
        "products as TF32, too (torch.set_float32_matmul_precision), under autocast gradients stay "
        "float32, bf16 has 16-bit parameters and gradients.",
    )
    recompute: bool = Field(
        False,
        description="Activation checkpointing: backward computes activations anew. Predicted "
        "memory does not know of it.",
    )

    @property
    def compute_settings(self) -> ComputeSettings:
        return ComputeSettings(self.precision, self.recompute)


class PlacedJobSpec(JobSpec, PlacedModelSpec):
    """A job on a cluster that one need not have."""

    step_seconds: float | None = Field(
        None,
        gt=0,
        le=LONGEST_STEP_SECONDS,
        description="Seconds one step takes on one device, if you know: scales the estimate to it.",
    )
    compute_is_known: bool = Field(
        False, description="Whether the profile is of known seconds, where it was not measured."
    )

    @property
    def compute_settings(self) -> ComputeSettings:
        return ComputeSettings(self.precision, self.recompute, self.step_seconds)


class PredictionSpec(JobSpec):
    proposals: int = Field(2000, ge=1, le=MOST_PROPOSALS, description="Strategies sampled.")
    simulator: str = Field(
        "learned",
        max_length=32,
        description="What predicts: a name as in POST /v1/tunings. `learned` has learned from "
        "other domains' trials, as in `autosync rank`; `timeline` from none.",
    )


class RankSpec(PredictionSpec, PlacedJobSpec, DomainSpec):
    """A model on a cluster, and how widely to look."""

    top: int = Field(10, ge=1, le=256, description="Strategies answered.")


class PredictSpec(PlacedJobSpec):
    """Given strategies on a cluster that one need not have."""

    strategies: list[str | Strategy] = Field(
        [],
        max_length=MOST_GIVEN,
        description="Names of hand-designed strategies or of published methods, or strategies "
        "themselves; by default all hand-designed ones.",
    )
    engine: str | None = Field(
        None,
        max_length=40,
        description="System whose time for each message is added (`bytescheduler`), or `none`; by "
        "default that of the published method.",
    )
    constants: str = Field(
        "auto",
        max_length=40,
        description="Fitted constants: `auto` by the cluster's name, `none`, or a name.",
    )
    simulator: str = Field("timeline", max_length=32, description="As in POST /v1/tunings.")


class ScaleSpec(PlacedJobSpec):
    """A job on other numbers of such nodes."""

    nodes: list[Annotated[int, Field(ge=1, le=MOST_NODES)]] = Field(
        [1, 2, 4, 8, 16, 32],
        min_length=1,
        max_length=MOST_NODE_COUNTS,
        description="Numbers of nodes; more than the cluster has repeat its node.",
    )
    strategy: str | Strategy = Field(
        "ddp", description="A hand-designed strategy or a published method, by name."
    )
    simulator: str = Field("timeline", max_length=32, description="As in POST /v1/tunings.")


class CollectivesSpec(BaseModel):
    """Which collective, on which cluster: the table that nccl-tests would print."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    cluster: str = Field(
        max_length=200, description="Id of a posted cluster, or the name of a bundled one."
    )
    operation: CollectiveOperation = Field("all_reduce", description="Which collective.")
    sizes_bytes: list[Annotated[float, Field(gt=0, le=LARGEST_MESSAGE_BYTES)]] = Field(
        [8.0 * 2**place for place in range(28)],
        min_length=1,
        max_length=MOST_SIZES,
        description="Of the whole buffer, as nccl-tests count them; by default 8 B to 1 GiB.",
    )
    nodes: int | None = Field(
        None, ge=1, le=MOST_NODES, description="So many such nodes, in place of the cluster's."
    )
    algorithm: str = Field(
        "",
        max_length=20,
        description="Forced, as by NCCL_ALGO: Ring, Tree, NVLS, NVLSTree, PAT.",
    )
    protocol: str = Field(
        "", max_length=20, description="Forced, as by NCCL_PROTO: LL, LL128, Simple."
    )
    channels: int = Field(
        0,
        ge=0,
        le=1024,
        description="At most so many, as by NCCL_MAX_NCHANNELS; 0: NCCL's own.",
    )


class RentedCluster(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    cluster: str = Field(max_length=200, description="Its id, or the name of a bundled one.")
    cost_per_hour: float | None = Field(None, ge=0, le=1e9, description="Of all of it.")


class CompareSpec(PredictionSpec):
    """A model on several clusters: what to rent."""

    clusters: list[RentedCluster] = Field(min_length=1, max_length=MOST_CLUSTERS)
