"""Options of requests, as the service's bodies have them: GET /docs says what each means."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from autosync.documents import to_data
from autosync.optimizers import OptimizerName
from autosync.trials.request_names import ComputeDevice, ComputeKind, LauncherName

if TYPE_CHECKING:
    from autosync.domain import Optimizer, Profile
    from autosync.search.loop.settings import Acquisition
    from autosync.search.space import Space


class PredictionOptions(TypedDict, total=False):
    """Of POST /v1/compare, besides the graph and the clusters."""

    batch_size: int
    optimizer: "OptimizerName | Optimizer"
    proposals: int
    seed: int
    simulator: str


class RankOptions(PredictionOptions, total=False):
    """Of POST /v1/rank, besides the graph and the cluster."""

    profile: "Profile"
    space: "Space"
    top: int


class TuningOptions(TypedDict, total=False):
    """Of POST /v1/tunings, besides the graph and the cluster."""

    budget: int
    batch_size: int
    optimizer: "OptimizerName | Optimizer"
    profile: "Profile"
    space: "Space"
    proposals: int
    repeats: int
    iterations: int
    warmup: int
    alpha: float
    acquisition: "Acquisition"
    first_designs: int
    design_share: float
    refined_share: float
    neighbour_share: float
    least_gain: float
    seed: int
    probe: bool
    simulator: str
    launcher: LauncherName
    byte_scale: float
    time_scale: float
    compute: ComputeKind
    compute_device: ComputeDevice


def plain(options: Mapping[str, object]) -> dict[str, Any]:
    """As JSON data, documents too."""
    return {
        name: to_data(value) if is_dataclass(value) else value for name, value in options.items()
    }
