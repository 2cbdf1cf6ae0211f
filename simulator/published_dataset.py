"""AutoSync's public dataset, read into a dataset of ours.

    MODEL/graph_item                          the graph, once a model
    MODEL/cluster-A/resource_spec/ID          the cluster (YAML)
    MODEL/cluster-A/strategies/ID             the strategy (protobuf)
    MODEL/cluster-A/runtime/ID                YAML: `average` and `runtime`, in seconds

A letter stands for one cluster in every model. The files do not say how long computing takes, which
devices there are, or how large a batch is. Whoever imports them states these facts in a YAML file:

    clusters:
      cluster-A: {gpu_type: titan-x}
      cluster-B: {gpu_type: t4, intra_bandwidth_gbps: 48}
    models:
      resnet101: {batch_size: 32, step_seconds: {cluster-A: 0.31, cluster-B: 0.24}}
      ncf: {batch_size: 256, step_seconds: 0.05, touched_rows: 512}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from pydantic import ConfigDict

from autosync.cluster.cluster_file import strict_yaml
from autosync.documents import STRICT, from_data, to_json
from autosync.domain import Domain, Profile
from autosync.errors import AutosyncError, InvalidInput, NotFound, NotSupported
from autosync.graph import ModelGraph
from autosync.interop.autodist_graph import MAX_GRAPH_BYTES, ImportedGraph, read_graph_item
from autosync.interop.autodist_strategy import MAX_STRATEGY_BYTES, import_strategy
from autosync.interop.resource_spec import Hardware, ResourceSpec, read_resource_spec
from autosync.profiling import profile_from_step_seconds
from autosync.simulator.runtime_dataset import write_dataset

MAX_TEXT_BYTES = 1_000_000
LAUNCHER = "imported from the published layout"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """batch_size: examples of one replica. touched_rows: of sparse variables, all or by name.

    step_seconds: of one replica's forward and backward pass without synchronization, for all
        clusters or by cluster folder; profile: the same, operation by operation. One of the two.
    """

    batch_size: int
    step_seconds: float | dict[str, float] | None = None
    touched_rows: int | dict[str, int] | None = None
    profile: Profile | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What the files do not say, by folder name."""

    models: dict[str, ModelFacts]
    clusters: dict[str, Hardware] = field(default_factory=dict)
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that was not taken: which, why in short, and the message of the error."""

    sample: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ImportedDataset:
    """trials has the columns of a dataset, a row a sample."""

    domains: tuple[Domain, ...]
    trials: pd.DataFrame
    left_out: tuple[SkippedSample, ...]


def read_facts(file: Path) -> DatasetFacts:
    """Raises InvalidInput: the file is not there, is no YAML, or names the field at fault."""
    return from_data(DatasetFacts, strict_yaml(_text(file), str(file)), str(file))


def import_dataset(
    folder: Path, out: Path, facts: DatasetFacts, *, allow_lossy: bool = False
) -> ImportedDataset:
    """Read the models that `facts` names, and write them to `out` as a dataset of ours.

    `average` counts as one pass; its spread is that of the list `runtime`. A strategy measured
    again in the same domain is its next pass. Samples that cannot be read are left out and listed.

    Raises:
        NotFound: a model's folder is missing. InvalidInput: a graph item is damaged, a fact is
            missing, or nothing at all could be read.
    """
    reading = _PublishedReader(facts, allow_lossy)
    for model in sorted(facts.models):
        if not (folder / model).is_dir():
            raise NotFound(
                f"there is no model {model!r} in {str(folder)!r}.",
                thing="model",
                value=model,
                remedy=f"It holds {', '.join(_names(folder)) or 'nothing'}.",
            )
        reading.model(folder / model, facts.models[model])
    if not reading.rows:
        why = f" The first: {reading.left_out[0].message}" if reading.left_out else ""
        raise InvalidInput(
            f"{str(folder)!r} holds no sample that could be read; {len(reading.left_out)} were "
            f"left out.{why}",
            thing="dataset",
            value=str(folder),
            remedy="The layout is MODEL/graph_item and MODEL/cluster-X/{resource_spec,runtime,"
            "strategies}/ID.",
        )
    imported = ImportedDataset(
        tuple(reading.domains.values()), pd.DataFrame(reading.rows), tuple(reading.left_out)
    )
    write_dataset(out, imported.domains, imported.trials)
    return imported


@dataclass(slots=True)
class _PublishedReader:
    facts: DatasetFacts
    allow_lossy: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[SkippedSample] = field(default_factory=list)
    domains: dict[str, Domain] = field(default_factory=dict)
    passes: dict[tuple[str, str], int] = field(default_factory=dict)

    def model(self, folder: Path, facts: ModelFacts) -> None:
        item = folder / "graph_item"
        read = read_graph_item(
            _bytes(item, MAX_GRAPH_BYTES),
            folder.name,
            facts.batch_size,
            facts.touched_rows,
            str(item),
        )
        for cluster in (folder / name for name in _names(folder)):
            self.cluster(cluster, read, facts)

    def cluster(self, folder: Path, read: ImportedGraph, facts: ModelFacts) -> None:
        strategies = folder / ("strategies" if (folder / "strategies").is_dir() else "strategy")
        names = _files(strategies)
        if not names:
            return
        hardware = self.facts.clusters.get(folder.name, Hardware())
        profile = _profile(read.graph, facts, folder, hardware)
        specs: dict[str, ResourceSpec] = {}
        for name in names:
            sample = f"{folder.parent.name}/{folder.name}/{name}"
            try:
                text = _text(_beside(folder / "resource_spec", name))
                if text not in specs:
                    spec = read_resource_spec(text, f"{sample}, resource_spec", hardware)
                    named = replace(spec.cluster, name=f"{folder.name}-{len(specs) + 1}")
                    specs[text] = replace(spec, cluster=named)
                self.sample(sample, strategies / name, read, profile, specs[text])
            except AutosyncError as error:
                has_reason = isinstance(error, NotSupported) and isinstance(error.value, str)
                reason = str(error.value) if has_reason else f"is refused ({type(error).__name__})"
                self.left_out.append(SkippedSample(sample, reason, str(error)))

    def sample(
        self, sample: str, file: Path, read: ImportedGraph, profile: Profile, spec: ResourceSpec
    ) -> None:
        domain = Domain(read.graph, spec.cluster, profile)
        strategy = import_strategy(
            _bytes(file, MAX_STRATEGY_BYTES),
            domain,
            devices=spec.devices,
            without_gradient=read.without_gradient,
            allow_lossy=self.allow_lossy,
            source=f"{sample}, strategy",
        )
        runtime = _beside(file.parent.parent / "runtime", file.name)
        average, spread = _runtime(_text(runtime), f"{sample}, runtime")
        self.domains.setdefault(domain.id, domain)
        number = self.passes.get((domain.id, strategy.id), 0) + 1
        self.passes[domain.id, strategy.id] = number
        self.rows.append(
            {
                "domain": domain.id,
                "strategy_id": strategy.id,
                "strategy": to_json(strategy),
                "origin": "imported",
                "occasion": 1,
                "pass": number,
                "step_seconds": average,
                "spread": spread,
                "error": None,
                "launcher": LAUNCHER,
                "byte_scale": 1.0,
                "time_scale": 1.0,
                "load": None,
            }
        )


def _profile(graph: ModelGraph, facts: ModelFacts, folder: Path, hardware: Hardware) -> Profile:
    if facts.profile is not None:
        return facts.profile
    stated = facts.step_seconds
    seconds = stated.get(folder.name) if isinstance(stated, Mapping) else stated
    if seconds is None:
        raise InvalidInput(
            f"model {graph.name!r}: how long a step computes on {folder.name} is not stated, and "
            "the files do not say it.",
            thing="step_seconds",
            value=folder.name,
            remedy="State step_seconds (of one device, without synchronization) or a profile.",
        )
    return profile_from_step_seconds(graph, seconds, hardware.gpu_type or "cpu")


def _runtime(text: str, source: str) -> tuple[float, float | None]:
    """Average seconds, and (p90 - p10) / median of the list where there are several."""
    data = strict_yaml(text, source)
    average = data.get("average") if isinstance(data, dict) else None
    listed = data.get("runtime") if isinstance(data, dict) else None
    every = [average, *(listed if isinstance(listed, list) else [])]
    if not all(_is_seconds(each) for each in every):
        raise InvalidInput(
            f"{source}: `average` and the list `runtime` must be positive seconds.",
            thing=source,
            value=average,
            remedy="A runtime file is YAML with these two.",
        )
    low, median, high = np.quantile(every[1:] or every, (0.1, 0.5, 0.9))
    return float(every[0]), float((high - low) / median) if len(every) > 2 else None


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _beside(folder: Path, name: str) -> Path:
    """The file of the same ID, with or without the ending .yml or .yaml."""
    identity = name.removesuffix(".yml").removesuffix(".yaml")
    for ending in ("", ".yml", ".yaml"):
        if (folder / (identity + ending)).is_file():
            return folder / (identity + ending)
    raise NotFound(
        f"there is no {folder.name} of {identity!r}.",
        thing=folder.name,
        value=identity,
        remedy="Copy the dataset whole.",
    )


def _text(file: Path) -> str:
    try:
        return _bytes(file, MAX_TEXT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{str(file)!r} is not UTF-8 text (byte {error.start}).", thing=file.name
        ) from None


def _bytes(file: Path, most: int) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(most + 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot read {str(file)!r}: {error.strerror}.", thing=file.name, value=str(file)
        ) from None
    if len(data) > most:
        raise InvalidInput(
            f"{str(file)!r} is larger than {most} bytes.", thing=file.name, value=str(file)
        )
    return data
