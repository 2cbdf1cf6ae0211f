"""From what the user typed to domain objects, each refusal naming what was typed."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from autosync.api.cli.console import warn
from autosync.api.cli.foreign_models import (
    foreign_name,
    is_foreign_module,
    is_onnx_file,
    load_foreign_module,
    onnx_graph,
)
from autosync.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from torch import nn

    from autosync.bundle import Bundle
    from autosync.cluster import Cluster
    from autosync.domain import Domain, Profile
    from autosync.graph import ModelGraph
    from autosync.importing import Examples, ModelTarget
    from autosync.importing.example_inputs import Inputs
    from autosync.importing.training_step import Loss
    from autosync.simulator.simulator_contract import Simulator
    from autosync.strategy import Strategy


MOST_FILE_BYTES = 64_000_000
"""Of a document; the largest that are known have some 5 MB."""


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """How the compute seconds are found: from a file (or several, at other batch sizes), or
    estimated for a device type."""

    files: Sequence[Path] | None = None
    device: str | None = None
    efficiency: float | None = None
    step_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RecordingChoice:
    """values: a step that depends on values runs on the CPU. length: tokens in a sentence, where
    neither a graph nor a function says it. autocast: name of the type of mixed precision."""

    values: bool = False
    length: int | None = None
    autocast: str | None = None


def load_graph(
    model: str, batch_size: int | None, choice: RecordingChoice | None = None
) -> "ModelGraph":
    """The graph of a bundled model, of a graph JSON, of another library's model, or of
    `package.module:function`."""
    how = choice or RecordingChoice()
    if is_foreign_module(model):
        found = load_foreign_module(model, batch_size, how.length, allocate=how.values)
        return _target_graph(found, foreign_name(model), how)
    if ":" in model and not _is_file_name(model):
        return _import_target(model, batch_size, how)
    if not _is_file_name(model):
        return _bundled_graph(model, batch_size, how)
    if how.autocast is not None:
        raise InvalidInput(
            f"{model}: --autocast records a module, and this is a graph already.",
            thing="--autocast",
            value=how.autocast,
            remedy="Give a bundled name, package.module:function, a config.json or timm:NAME.",
        )
    if is_onnx_file(model):
        return onnx_graph(model, batch_size, how.length)
    return _graph_file(Path(model), batch_size)


def _is_file_name(model: str) -> bool:
    return model.endswith((".json", ".onnx")) or "/" in model or Path(model).is_file()


def _graph_file(path: Path, batch_size: int | None) -> "ModelGraph":
    from autosync.documents import from_json
    from autosync.graph import ModelGraph

    graph = from_json(ModelGraph, read_bytes(path, "graph"), source=str(path))
    if batch_size is not None and batch_size != graph.batch_size:
        raise InvalidInput(
            f"{path} was imported at batch size {graph.batch_size}, but --batch is {batch_size}.",
            thing="--batch",
            value=batch_size,
            remedy="Import the model again at that batch size with `autosync import`.",
        )
    return graph


def _import_target(target: str, batch_size: int | None, choice: RecordingChoice) -> "ModelGraph":
    from autosync.importing import load_target

    found = load_target(target, allocate=choice.values)
    if batch_size is not None and batch_size != found.batch_size:
        raise InvalidInput(
            f"{target} makes inputs of batch size {found.batch_size}, but --batch is {batch_size}.",
            thing="--batch",
            value=batch_size,
            remedy="Let the function make inputs of that batch size.",
        )
    return _target_graph(found, target.partition(":")[2], choice)


def _target_graph(found: "ModelTarget", name: str, choice: RecordingChoice) -> "ModelGraph":
    inputs, values, autocast = found.example_inputs, choice.values, choice.autocast
    return recorded_graph(
        found.module, inputs, found.loss, name, found.batch_size, values, autocast
    )


def recorded_graph(
    module: "nn.Module",
    inputs: "Inputs | Examples",
    loss: "Loss | None",
    name: str,
    batch_size: int,
    values: bool,
    autocast: str | None = None,
) -> "ModelGraph":
    """The module's graph; what the recording warns of is said in a line each."""
    import torch

    from autosync.importing import import_module

    dtype: torch.dtype | None = getattr(torch, autocast) if autocast else None

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = import_module(
            *(module, inputs, loss),
            name=name,
            batch_size=batch_size,
            values=values,
            autocast=dtype,
        )
    for warning in caught:
        if warning.category is UserWarning and str(warning.message).startswith(repr(name)):
            warn(str(warning.message))
    return graph


def _bundled_graph(name: str, batch_size: int | None, choice: RecordingChoice) -> "ModelGraph":
    from autosync.models import BUNDLED, bundled, is_bundled, spec_of

    if not is_bundled(name):
        remedy = "A graph JSON or package.module:function will do as well."
        raise unknown_name("model", name, list(BUNDLED), remedy)
    if choice.autocast is None:
        return bundled(name, batch_size)
    import torch

    spec = spec_of(name)
    size = spec.batch_size if batch_size is None else batch_size
    with torch.device("meta"):
        module, inputs, loss = spec.build(size)
    return recorded_graph(module, inputs, loss, spec.name, size, False, choice.autocast)


def load_module(
    model: str, batch_size: int | None
) -> "tuple[nn.Module, Inputs | Examples, Loss | None, int]":
    """The module itself with real weights, its inputs, loss and batch size, for measuring."""
    from autosync.importing import load_target
    from autosync.models import BUNDLED, is_bundled, spec_of

    if is_foreign_module(model) or ":" in model:
        found = (
            load_foreign_module(model, batch_size, None, allocate=True)
            if is_foreign_module(model)
            else load_target(model, allocate=True)
        )
        return found.module, found.example_inputs, found.loss, found.batch_size
    if is_bundled(model):
        spec = spec_of(model)
        size = batch_size or spec.batch_size
        return *spec.build(size), size
    if _is_file_name(model):
        raise InvalidInput(
            f"{model} names a file: a graph has no code that could be run and measured.",
            thing="model",
            value=model,
            remedy="Estimate it with --device TYPE, or give package.module:function.",
        )
    raise unknown_name("model", model, list(BUNDLED), "package.module:function will do as well.")


def load_profile(graph: "ModelGraph", cluster: "Cluster", choice: ProfileChoice) -> "Profile":
    """The profile file, a regression over several, or an estimate for the cluster's fastest device
    type."""
    from autosync.batch_regression import profile_at_batch
    from autosync.documents import from_json
    from autosync.domain import Profile

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
    from autosync.cluster_file import bundled_clusters, load_cluster

    known = list(bundled_clusters())
    path = Path(name)
    if name not in known and path.suffix not in (".yaml", ".yml") and not path.is_file():
        raise unknown_name("cluster", name, known, "A YAML file will do as well.")
    return load_cluster(name)


def load_domain(
    model: str, cluster: str, batch_size: int | None, choice: ProfileChoice
) -> "Domain":
    """The whole domain of a command that names MODEL and CLUSTER."""
    from autosync.domain import Domain

    machines = load_named_cluster(cluster)
    graph = load_graph(model, batch_size)
    return Domain(graph, machines, load_profile(graph, machines, choice))


def load_strategy(path: Path) -> "Strategy":
    """The strategy of a strategy file or of a bundle."""
    from autosync.strategy import Strategy

    document = load_strategy_or_bundle(path)
    return document if isinstance(document, Strategy) else document.strategy


def load_strategy_or_bundle(path: Path) -> "Strategy | Bundle":
    """What the file holds, told apart by the field `strategy`, which only a bundle has."""
    import json

    from autosync.bundle import Bundle
    from autosync.documents import from_data
    from autosync.strategy import Strategy

    try:
        data = json.loads(read_bytes(path, "strategy"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is no JSON: {error}.",
            thing="strategy",
            value=str(path),
            remedy="Give a bundle from `autosync tune` or a strategy (`autosync schema Strategy`).",
        ) from None
    if isinstance(data, dict) and "strategy" in data:
        return from_data(Bundle, data, source=str(path))
    return from_data(Strategy, data, source=str(path))


def load_simulator(name: str, db: str, domain: "Domain") -> "Simulator":
    """A bundled simulator, or a trained one of the database; for `nearest`, by the domain.

    Raises:
        NotFound: no such simulator, or no such database.
        InvalidInput: it was trained on other features than this version's.
    """
    from autosync.api.cli.open_database import opened, refuse_missing
    from autosync.api.engine.registry import SIMULATORS, TRAINED, simulator_named

    if name in SIMULATORS and name not in TRAINED:
        return simulator_named(name, domain)
    try:
        refuse_missing(db)
        from autosync.api.engine.simulator_store import resolved_name, simulator_of

        with opened(db) as database, database.reading() as session:
            return simulator_of(session, resolved_name(session, name, domain), domain)
    except NotFound as missing:
        if missing.thing != "--db":
            raise
        if name in TRAINED:  # nothing was tuned here: the one that comes with AutoSync
            return simulator_named(name, domain)
        remedy = f"Trained ones are in a database, and {missing.message}"
        raise unknown_name("simulator", name, list(SIMULATORS), remedy) from None


def unknown_name(kind: str, name: str, known: list[str], remedy: str) -> NotFound:
    """A NotFound that suggests what was probably meant."""
    close = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(close)}? " if close else f"There are: {', '.join(known)}. "
    return NotFound(f"no {kind} is called {name!r}.", thing=kind, value=name, remedy=hint + remedy)
