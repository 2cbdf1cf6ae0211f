"""MODEL, CLUSTER and what says how long the model computes, as they were typed: the domain."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.api.cli.arguments.document_arguments import load_named_cluster, read_bytes
from autosync.api.cli.arguments.model_arguments import load_graph
from autosync.errors import InvalidInput

if TYPE_CHECKING:
    from autosync.cluster import Cluster
    from autosync.domain import Domain, Profile
    from autosync.graph import ModelGraph


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """How the compute seconds are found: from a file (or several, at other batch sizes), or
    estimated for a device type."""

    files: Sequence[Path] | None = None
    device: str | None = None
    efficiency: float | None = None
    step_seconds: float | None = None


def load_profile(graph: "ModelGraph", cluster: "Cluster", choice: ProfileChoice) -> "Profile":
    """The profile file, a regression over several, or an estimate for the cluster's fastest device
    type."""
    from autosync.documents import from_json
    from autosync.domain import Profile
    from autosync.profiling import profile_at_batch

    found = [
        from_json(Profile, read_bytes(file, "profile"), source=str(file))
        for file in choice.files or ()
    ]
    if found:
        return found[0] if len(found) == 1 else profile_at_batch(graph, found)
    return estimated_profile(graph, choice.device or cluster.fastest_device_type, choice)


def estimated_profile(graph: "ModelGraph", device: str, choice: ProfileChoice) -> "Profile":
    """A roofline of the device, or one scaled to the step's known seconds."""
    from autosync.profiling import EFFICIENCY, estimate_profile, profile_from_step_seconds

    if choice.step_seconds is not None:
        if choice.efficiency is not None:
            raise InvalidInput(
                "--step-seconds and --efficiency are both given, but known seconds leave nothing "
                "to assume.",
                thing="--efficiency",
                value=choice.efficiency,
                remedy="Leave --efficiency out.",
            )
        return profile_from_step_seconds(graph, choice.step_seconds, device)
    given = choice.efficiency
    return estimate_profile(graph, device, efficiency=EFFICIENCY if given is None else given)


def load_domain(
    model: str,
    cluster: str,
    batch_size: int | None,
    choice: ProfileChoice,
    optimizer: str | None = None,
) -> "Domain":
    """The whole domain of a command that names MODEL and CLUSTER. optimizer: None for the usual one
    of such models."""
    from autosync.api.engine.request_checks import check_optimizer
    from autosync.domain import Domain, optimizer_named, usual_optimizer

    machines = load_named_cluster(cluster)
    graph = load_graph(model, batch_size)
    trained_with = optimizer_named(optimizer) if optimizer else usual_optimizer(graph)
    domain = Domain(graph, machines, load_profile(graph, machines, choice), trained_with)
    check_optimizer(domain)
    return domain
