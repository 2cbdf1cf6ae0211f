"""What a client asks for, as JSON or as the dashboard's form, and the tuning request it becomes."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from autosync.api.db.database import Database
from autosync.api.engine.request_checks import SCALES, refuse_unused
from autosync.api.engine.service_limits import LARGEST
from autosync.api.engine.tuning_notes import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS
from autosync.api.engine.tuning_request import TuningRequest, at_scales
from autosync.api.engine.worker_registry import refuse_without_gpus
from autosync.api.http.named_documents import (
    OptimizerField,
    cluster_named,
    estimated_profile,
    graph_named,
)
from autosync.domain import Domain, Profile, usual_optimizer
from autosync.errors import InvalidInput
from autosync.search.loop.settings import Acquisition, Settings
from autosync.search.space import Space
from autosync.trials.request_names import ComputeDevice, ComputeKind, LauncherName

Tag = Annotated[str, Field(min_length=1, max_length=LONGEST_TAG, pattern=r"^[^\s,]+$")]


class TuningBody(BaseModel):
    """What to tune, and how long and how widely to search."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    graph: str = Field(
        max_length=200, description="Id of a posted graph, or the name of a bundled model."
    )
    cluster: str = Field(
        max_length=200, description="Id of a posted cluster, or the name of a bundled one."
    )
    budget: int = Field(24, ge=1, le=LARGEST, description="Strategies to try by real execution.")
    batch_size: int | None = Field(
        None, ge=1, le=2**20, description="Of one replica; only for bundled models."
    )
    optimizer: OptimizerField = None
    profile: Profile | None = Field(
        None, description="Measured compute seconds; without it they are estimated."
    )
    space: Space = Field(
        Space(), description="Allowances (which choices may be taken) and pins (which must be)."
    )
    proposals: int = Field(30_000, ge=1, le=LARGEST, description="Sampled in a round.")
    repeats: int = Field(10, ge=1, le=1000, description="Interleaved repeats of the finalists.")
    iterations: int = Field(5, ge=1, le=10_000, description="Measured in each pass of a trial.")
    warmup: int = Field(2, ge=0, le=10_000)
    alpha: float = Field(
        Settings().alpha,
        ge=0,
        le=1000,
        description="How much strategies of a round shall differ from each other and from all that "
        "were tried: the weight of similarity against predicted time (equation 11).",
    )
    acquisition: Acquisition = Field(
        Settings().acquisition,
        description="How the doubt of a simulator that learns counts: not at all (`prediction`), "
        "as one standard deviation below the prediction (`lower_bound`), or by the "
        "`expected_improvement` over the fastest measured.",
    )
    first_designs: int = Field(
        Settings().first_designs,
        ge=1,
        le=1000,
        description="Hand-designed strategies of the first round, DDP among them; half of the "
        "budget at the most.",
    )
    design_share: float = Field(
        Settings().design_share,
        ge=0,
        le=1,
        description="Of a later round's trials, at most so many go to hand-designed strategies "
        "that could still be the fastest.",
    )
    refined_share: float = Field(
        Settings().refined_share,
        ge=0,
        le=1,
        description="Of a round's trials, for what local searches from the fastest measured "
        "strategies come to.",
    )
    neighbour_share: float = Field(
        Settings().neighbour_share,
        ge=0,
        le=1,
        description="Of a round's trials, for neighbours of the fastest measured strategies; "
        "random draws have the rest.",
    )
    least_gain: float = Field(
        Settings().least_gain,
        ge=0,
        le=1,
        description="End the search where its best proposal is expected to gain a smaller share "
        "of the fastest measured seconds; 0 spends the budget.",
    )
    seed: int = Field(0, ge=0, lt=2**53)
    probe: bool = Field(
        True, description="Measure what messages cost first, unless the cluster brings its costs."
    )
    simulator: str = Field(
        "ensemble",
        max_length=32,
        description="What ranks proposals: `timeline` plays the plans, `learned` corrects it by "
        "the trials of other domains and by the tuning's own, `ensemble` has networks beside; "
        "`gaussian`, `trees`, `linear`, `lstm` and `gat` are its members alone; `analytic` is the "
        "papers' equations; or the name of a trained one (GET /v1/simulators), which this tuning's "
        "trials correct for this tuning alone; `nearest` is the trained one that has learned from "
        "the most similar domain.",
    )
    launcher: LauncherName = "auto"
    byte_scale: float | None = Field(
        None,
        ge=SCALES["byte_scale"][0],
        le=SCALES["byte_scale"][1],
        description="Every message carries this share of its bytes; by default the largest that "
        "a small machine carries for this cluster.",
    )
    time_scale: float | None = Field(
        None,
        ge=SCALES["time_scale"][0],
        le=SCALES["time_scale"][1],
        description="The emulated cluster runs this many times slower; by default as the byte "
        "scale.",
    )
    compute: ComputeKind = Field(
        "waited",
        description="What stands for the model's compute in trials: its profiled seconds, waited "
        "out, or `kernels` of its operations' shapes, whose seconds are measured first. Kernels "
        "go with scales of 1.",
    )
    compute_device: ComputeDevice = Field(
        "cpu",
        description="Where the worker's trials compute: `cuda` needs GPUs there, and kernels.",
    )

    @property
    def settings(self) -> Settings:
        return Settings(
            budget=self.budget,
            proposals=self.proposals,
            repeats=self.repeats,
            seed=self.seed,
            warmup=self.warmup,
            iterations=self.iterations,
            probe=self.probe,
            alpha=self.alpha,
            acquisition=self.acquisition,
            first_designs=self.first_designs,
            design_share=self.design_share,
            refined_share=self.refined_share,
            neighbour_share=self.neighbour_share,
            least_gain=self.least_gain,
        )


class NotesBody(BaseModel):
    """What to write beside a tuning; what is left out, or null, stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: list[Tag] | None = Field(None, max_length=MOST_TAGS, description="In place of the old.")
    note: str | None = Field(None, max_length=LONGEST_NOTE)
    archived: StrictBool | None = Field(
        None, description="Out of the dashboard's lists, or back in; only once it has ended."
    )


class TuningForm(BaseModel):
    """The dashboard's form: as `TuningBody`, but empty where the default is meant."""

    graph: str
    cluster: str
    budget: str = ""
    batch_size: str = ""
    optimizer: str = ""
    launcher: str = ""
    simulator: str = ""
    byte_scale: str = ""
    time_scale: str = ""
    repeats: str = ""
    seed: str = ""

    def body(self) -> TuningBody:
        """Empty fields take their defaults.

        Raises:
            InvalidInput: names the first field that is wrong.
        """
        given: dict[str, Any] = {k: v for k, v in self.model_dump().items() if v != ""}
        try:
            return TuningBody.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(
                f"{name}: {first['msg']}, got {first['input']!r}.", thing=name, value=first["input"]
            ) from None


def tuning_request(database: Database, body: TuningBody) -> TuningRequest:
    """Names and ids become documents.

    Raises:
        NotFound: no such graph or cluster.
        InvalidInput: the profile is for another graph, or has no effect on kernels.
        NotSupported: no worker has the GPUs that are asked for.
    """
    with database.reading() as session:
        graph = graph_named(session, body.graph, body.batch_size)
        cluster = cluster_named(session, body.cluster)
    refuse_unused(body.compute, {"profile": body.profile})
    profile = body.profile or estimated_profile(graph, cluster)
    request = TuningRequest(
        domain=Domain(graph, cluster, profile, body.optimizer or usual_optimizer(graph)),
        settings=body.settings,
        space=body.space,
        simulator=body.simulator,
        launcher=body.launcher,
        compute=body.compute,
        device=body.compute_device,
    )
    with database.reading() as session:
        refuse_without_gpus(session, request)
    return at_scales(request, body.byte_scale, body.time_scale)
