"""MODEL, CLUSTER and what says how long the model computes, as they were typed: the domain, and
what it is in two lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from autosync.api.cli.console import number_of_ms, say, warn
from autosync.compute_settings import AS_RECORDED, ComputeSettings, at_precision, profile_at
from autosync.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from autosync.bundle import Bundle
    from autosync.cluster import Cluster
    from autosync.domain import Domain, Profile
    from autosync.graph import ModelGraph
    from autosync.strategy import Strategy


MOST_FILE_BYTES = 64_000_000
"""Of a document; the largest that are known have some 5 MB."""


def read_bytes(path: Path, what: str, most: int = MOST_FILE_BYTES) -> bytes:
    """Raises InvalidInput where it cannot be read, or is larger than `most` bytes."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise InvalidInput(
            f"cannot read the {what} {str(path)!r}: {error.strerror}.",
            thing=what,
            value=str(path),
            remedy="Check the path.",
        ) from None
    if size > most:
        raise InvalidInput(
            f"the {what} {str(path)!r} has {size} bytes, more than {most}.",
            thing=what,
            value=size,
            remedy="Give a smaller one: no document of a model that is known is so large.",
        )
    return data


def load_named_cluster(name: str) -> "Cluster":
    """A bundled cluster by name, or a YAML file; suggests what was probably meant."""
    from autosync.cluster.cluster_file import bundled_clusters, load_cluster

    known = list(bundled_clusters())
    path = Path(name)
    if name not in known and path.suffix not in (".yaml", ".yml") and not path.is_file():
        raise unknown_name("cluster", name, known, "A YAML file will do as well.")
    return load_cluster(name)


def load_strategy(path: Path) -> "Strategy":
    """The strategy of a strategy file or of a bundle."""
    from autosync.strategy import Strategy

    document = load_strategy_or_bundle(path)
    return document if isinstance(document, Strategy) else document.strategy


def load_strategy_or_bundle(path: Path) -> "Strategy | Bundle":
    """What the file holds: a bundle is what has a field `strategy`."""
    import json

    from autosync.bundle import read_bundle
    from autosync.documents import from_data
    from autosync.strategy import Strategy

    text = read_bytes(path, "strategy")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is no JSON: {error}.",
            thing="strategy",
            value=str(path),
            remedy="Give a bundle from `autosync tune` or a strategy (`autosync schema Strategy`).",
        ) from None
    if isinstance(data, dict) and "strategy" in data:
        return read_bundle(text, source=str(path))
    return from_data(Strategy, data, source=str(path))


def unknown_name(kind: str, name: str, known: list[str], remedy: str) -> NotFound:
    """A NotFound that suggests what was probably meant."""
    close = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(close)}? " if close else f"There are: {', '.join(known)}. "
    return NotFound(f"no {kind} is called {name!r}.", thing=kind, value=name, remedy=hint + remedy)


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """How the compute seconds are found: from a file (or several, at other batch sizes), or
    estimated for a device type at the settings."""

    files: Sequence[Path] | None = None
    device: str | None = None
    settings: ComputeSettings = AS_RECORDED


def load_profile(graph: "ModelGraph", cluster: "Cluster", choice: ProfileChoice) -> "Profile":
    """The profile file, a regression over several, or an estimate for the cluster's fastest device
    type.

    Raises:
        InvalidInput: a file and a device type are both given, or what `profile_at` refuses.
    """
    from autosync.api.engine.request_checks import refuse_given
    from autosync.documents import from_json
    from autosync.domain import Profile
    from autosync.profiling import profile_at_batch

    if choice.files:
        device_too = {"--device": choice.device}
        refuse_given(device_too, "beside --profile, which names its own", "Give one of them.")
    found = [
        from_json(Profile, read_bytes(file, "profile"), source=str(file))
        for file in choice.files or ()
    ]
    given = profile_at_batch(graph, found) if len(found) > 1 else next(iter(found), None)
    device = choice.device or cluster.fastest_device_type
    return profile_at(graph, device, choice.settings, given)


def load_domain(
    model: str,
    cluster: str,
    batch_size: int | None,
    choice: ProfileChoice,
    optimizer: str | None = None,
) -> "Domain":
    """The whole domain of a command that names MODEL and CLUSTER. optimizer: None for the usual one
    of such models."""
    from autosync.api.cli.model_arguments import load_graph
    from autosync.api.engine.request_checks import check_optimizer
    from autosync.domain import Domain, optimizer_named, usual_optimizer

    machines = load_named_cluster(cluster)
    graph = at_precision(load_graph(model, batch_size), choice.settings.precision)
    trained_with = optimizer_named(optimizer) if optimizer else usual_optimizer(graph)
    domain = Domain(graph, machines, load_profile(graph, machines, choice), trained_with)
    check_optimizer(domain)
    return domain


def describe_domain(domain: "Domain") -> None:
    """What will be ranked or tuned, on stderr."""
    graph, cluster, profile = domain.graph, domain.cluster, domain.profile
    batches = f", {domain.accumulate} batches per update" if domain.accumulate > 1 else ""
    kinds = dict.fromkeys(device.type for device in cluster.device_of_rank())
    rates = sorted({node.bandwidth_gbps for node in cluster.nodes})
    frozen = f" and {graph.frozen_bytes / 1e6:.0f} MB frozen" if graph.frozen_bytes else ""
    between = f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    say(
        f"[bold]{escape(graph.name)}[/], batch {graph.batch_size} a replica{batches}, "
        f"{len(graph.variables)} variables, {graph.size_bytes / 1e6:.0f} MB{frozen}, trained with "
        f"{escape(domain.optimizer.name)}, on "
        f"[bold]{escape(cluster.name)}[/]: "
        f"{len(cluster.nodes)} nodes, {cluster.world_size} x {', '.join(kinds)}, "
        f"{between} Gbit/s a NIC"
    )
    mark = "an [bold yellow]estimate[/]" if domain.compute_source == "estimated" else "measured"
    note = profile.note
    if profile.device not in kinds:
        note += f", from {profile.device} by published peaks"
    say(f"Compute {number_of_ms(domain.compute_seconds)} ms a step: {mark} ({escape(note)})")


def warn_of_memory(domain: "Domain", ddp_peak_bytes: float) -> None:
    """Say so where DDP itself does not fit; what else does not fit is not proposed."""
    from autosync.simulator.memory.peak_memory import device_memory_bytes

    least = float(device_memory_bytes(domain).min())
    if ddp_peak_bytes > least:
        warn(
            f"DDP does not fit: it needs {ddp_peak_bytes / 1e9:.2f} GB on a rank, and the smallest "
            f"device has {least / 1e9:.2f} GB (predicted). Strategies that do not fit are left out."
        )
