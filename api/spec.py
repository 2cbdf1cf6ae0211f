"""What may be asked of the service: REST bodies, the dashboard's form, options of the command line
and arguments of the client all derive from these models."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from autosync.compute_settings import AS_RECORDED, ComputeSettings
from autosync.domain import MOST_ACCUMULATED, Optimizer, Profile, optimizer_named
from autosync.errors import InvalidInput
from autosync.optimizers import OptimizerName
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.settings import MOST_SEED, Acquisition, Settings
from autosync.search.space import SPACES, SPACES_IN_WORDS, Space, SpaceName
from autosync.trials.request_names import ComputeDevice, ComputeKind, LauncherName

KeyScope = Literal["read", "tune", "worker", "admin"]
"""What a key may do. read: every answer. tune: also tunings, models, clusters, predictions. worker:
to take queued tunings and write what they measured, nothing else. admin: all."""
LARGEST_COUNT = 10**9
"""Of anything that is counted: a column of 32 bits holds it. The operator's limits are lower."""
SCALES = {"byte_scale": (1e-6, 1.0), "time_scale": (0.01, 1000.0)}
"""Least and most. Below a millionth every message of a model of 4 GB is smaller than a packet."""
MOST_TAGS = 10
LONGEST_TAG = 40
LONGEST_NOTE = 2000
Tag = Annotated[str, Field(min_length=1, max_length=LONGEST_TAG, pattern=r"^[^\s,]+$")]
USUAL = Settings()
Spec = TypeVar("Spec", bound=BaseModel)


def _optimizer(given: object) -> object:
    try:
        return optimizer_named(given) if isinstance(given, str) else given
    except InvalidInput as error:
        raise ValueError(f"{error.message} {error.remedy}") from None


def _space(given: object) -> object:
    if not isinstance(given, str):
        return given
    found = next((space for name, space in SPACES.items() if name == given), None)
    if found is None:
        raise ValueError(f"no space has that name; those that have one are {', '.join(SPACES)}")
    return found


SpaceOrName = Annotated[Space, BeforeValidator(_space, json_schema_input_type=SpaceName | Space)]


class ModelSpec(BaseModel):
    """A model, and how widely to look."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    graph: str = Field(
        max_length=200, description="Id of a posted graph, or the name of a bundled model."
    )
    batch_size: int | None = Field(
        None, ge=1, le=2**20, description="Of one replica; only for bundled models."
    )
    optimizer: Annotated[
        Optimizer | None,
        BeforeValidator(_optimizer, json_schema_input_type=OptimizerName | Optimizer | None),
    ] = Field(
        None,
        description="Its name, or what it keeps; by default adamw of a model with attention, else "
        "sgd_momentum.",
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=MOST_ACCUMULATED,
        description="Batches whose gradients are added up before an update.",
    )
    seed: int = Field(0, ge=0, lt=MOST_SEED, description="Of the whole search.")

    @property
    def compute_settings(self) -> ComputeSettings:
        return AS_RECORDED


class PlacedModelSpec(ModelSpec):
    """A model on a cluster."""

    cluster: str = Field(
        max_length=200, description="Id of a posted cluster, or the name of a bundled one."
    )
    profile: Profile | None = Field(
        None, description="Measured compute seconds; without it they are estimated."
    )


class DomainSpec(PlacedModelSpec):
    """A model on a cluster, and what may be chosen."""

    space: SpaceOrName = Field(
        Space(),
        description="Allowances (which choices may be taken) and pins (which must be), or the name "
        "of a space: "
        + "; ".join(f"`{name}` is {words}" for name, words in SPACES_IN_WORDS.items())
        + ".",
    )


class AdvancedSpec(BaseModel):
    """How a tuning chooses its trials; the defaults are measured or reasoned in docs/search.md."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    alpha: float = Field(
        USUAL.alpha,
        ge=0,
        le=1000,
        description="How much strategies of a round shall differ from each other and from all that "
        "were tried: the weight of similarity against predicted time (equation 11).",
    )
    acquisition: Acquisition = Field(
        USUAL.acquisition,
        description="How the standard deviation of a simulator that learns counts: not at all "
        "(`prediction`), as one standard deviation below the prediction (`lower_bound`), or by the "
        "`expected_improvement` over the fastest measured.",
    )
    first_designs: int = Field(
        USUAL.first_designs,
        ge=1,
        le=1000,
        description="Hand-designed strategies of the first round, DDP among them; half of the "
        "budget at the most.",
    )
    design_share: float = Field(
        USUAL.design_share,
        ge=0,
        le=1,
        description="Of a later round's trials, at most so many go to hand-designed strategies "
        "that could still be the fastest.",
    )
    refined_share: float = Field(
        USUAL.refined_share,
        ge=0,
        le=1,
        description="Of a round's trials, for what local searches from the fastest measured "
        "strategies come to.",
    )
    neighbour_share: float = Field(
        USUAL.neighbour_share,
        ge=0,
        le=1,
        description="Of a round's trials, for neighbours of the fastest measured strategies; "
        "random draws have the rest.",
    )
    least_gain: float = Field(
        USUAL.least_gain,
        ge=0,
        le=1,
        description="End the search where its best proposal is expected to gain a smaller share "
        "of the fastest measured seconds; 0 spends the budget.",
    )


class TuningSpec(DomainSpec):
    """What to tune, and how long and how widely to search."""

    budget: int = Field(
        USUAL.budget, ge=1, le=LARGEST_COUNT, description="Strategies to try by real execution."
    )
    proposals: int = Field(
        USUAL.proposals, ge=1, le=LARGEST_COUNT, description="Strategies sampled in a round."
    )
    repeats: int = Field(
        USUAL.repeats, ge=1, le=1000, description="Interleaved repeats of the finalists."
    )
    iterations: int = Field(
        USUAL.iterations, ge=1, le=10_000, description="Measured in each pass of a trial."
    )
    warmup: int = Field(
        USUAL.warmup, ge=0, le=10_000, description="Iterations before the measured ones."
    )
    probe: bool = Field(
        True, description="Measure what messages cost first, unless the cluster brings its costs."
    )
    simulator: str = Field(
        "learned",
        max_length=32,
        description="What ranks proposals: `timeline` plays the plans, `learned` corrects it by "
        "the trials of other domains and by the tuning's own; `analytic` is the papers' "
        "equations; or the name of a trained one (GET /v1/simulators), which this tuning's "
        "trials correct for this tuning alone.",
    )
    launcher: LauncherName = Field(
        "auto",
        description="Where trials run: an emulated cluster with shaped links (`testbed`), the "
        "worker's loopback (`local`), the former where it is possible (`auto`), or the cluster's "
        "own hosts (`command`, `ray`).",
    )
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
    earlier: EarlierTrials | None = Field(
        None, description="What another tuning of the model measured, to begin from."
    )
    advanced: AdvancedSpec = Field(AdvancedSpec(), description="How the search chooses its trials.")

    @property
    def settings(self) -> Settings:
        names = ("budget", "proposals", "repeats", "seed", "warmup", "iterations", "probe")
        return Settings(**{name: getattr(self, name) for name in names}, **dict(self.advanced))


class NotesSpec(BaseModel):
    """What to write beside a tuning; what is left out, or null, stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: list[Tag] | None = Field(None, max_length=MOST_TAGS, description="In place of the old.")
    note: str | None = Field(None, max_length=LONGEST_NOTE)
    archived: StrictBool | None = Field(
        None, description="Out of the dashboard's lists, or back in; only once it has ended."
    )


def checked(spec: type[Spec], given: Mapping[str, Any]) -> Spec:
    """The specification that these values make.

    Raises:
        InvalidInput: names the first field that is wrong.
    """
    try:
        return spec.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(
            f"{name}: {first['msg']}, got {first['input']!r}.",
            thing=name,
            value=first["input"],
            remedy=f"`autosync schema {spec.__name__}` says what it may be.",
        ) from None
