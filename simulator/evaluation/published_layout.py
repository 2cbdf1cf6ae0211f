"""The layout of AutoSync's public dataset, written from a dataset of ours.

    MODEL/graph_item                          the graph, once a model
    MODEL/cluster-A/resource_spec/ID          the cluster (YAML)
    MODEL/cluster-A/strategies/ID             the strategy (protobuf)
    MODEL/cluster-A/runtime/ID                YAML: `average` and `runtime`, in seconds

A letter stands for one cluster in every model.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from autosync.documents import from_json
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotSupported
from autosync.interop.graph_item_export import write_graph_item
from autosync.interop.resource_spec import left_out_of_spec, write_resource_spec
from autosync.interop.strategy_export import export_strategy
from autosync.simulator.evaluation.measured_dataset import load_dataset, read_trials
from autosync.strategy import Strategy


@dataclass(frozen=True, slots=True)
class ExportedDataset:
    """places: by the folder made, the domain it holds. left_out: strategies by reason.
    left_out_of_specs: what the clusters' files can only hold as comments, a sentence each."""

    written: int
    places: dict[str, str]
    left_out: Counter[str]
    left_out_of_specs: tuple[str, ...]


def export_dataset(folder: Path, out: Path) -> ExportedDataset:
    """Write the dataset in `folder` to `out` as far as the published layout can hold it.

    Left out and counted: strategies that AutoDist cannot express, and those that failed. The layout
    has no place for the profile, the batch size or the testbed's scales.

    Raises:
        NotFound, InvalidInput: as `load_dataset`; `out` holds something already.
        NotSupported: a cluster or a graph cannot be expressed at all.
    """
    if out.exists() and any(out.iterdir()):
        raise InvalidInput(
            f"{str(out)!r} is not empty, and a dataset must not be mixed with another.",
            thing="out",
            value=str(out),
            remedy="Name a folder that does not exist yet.",
        )
    domains = [each.domain for each in load_dataset(folder)]
    trials = read_trials(folder)
    trials = trials[trials["pass"] > 0]
    places = _places(domains)
    left_out: Counter[str] = Counter()
    written = 0
    for domain in domains:
        place = out / places[domain.id]
        for name in ("resource_spec", "strategies", "runtime"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place.parent / "graph_item").write_bytes(write_graph_item(domain.graph))
        rows = trials[trials["domain"] == domain.id]
        reasons = [_export_one(domain, passes, place) for _, passes in rows.groupby("strategy_id")]
        left_out.update(reason for reason in reasons if reason)
        written += sum(not reason for reason in reasons)
    lost = dict.fromkeys(
        sentence for domain in domains for sentence in left_out_of_spec(domain.cluster)
    )
    named = {domain.id: f"{domain.graph.name}, {domain.cluster.name}" for domain in domains}
    return ExportedDataset(written, {p: named[i] for i, p in places.items()}, left_out, tuple(lost))


def _places(domains: list[Domain]) -> dict[str, str]:
    """The folder MODEL/cluster-X of each domain. Graphs that differ, and domains of one graph and
    cluster, get numbers."""
    models: dict[bytes, str] = {}
    letters: dict[tuple[str, int], str] = {}
    taken: Counter[tuple[str, str]] = Counter()
    found: dict[str, str] = {}
    for domain in domains:
        item = write_graph_item(domain.graph)
        if item not in models:
            again = sum(
                name.split("~")[0] == _folder(domain.graph.name) for name in models.values()
            )
            models[item] = _folder(domain.graph.name) + (f"~{again + 1}" if again else "")
        model = models[item]
        place = (domain.cluster.name, taken[model, domain.cluster.name])
        taken[model, domain.cluster.name] += 1
        found[domain.id] = f"{model}/cluster-{letters.setdefault(place, _letter(len(letters)))}"
    return found


def _folder(name: str) -> str:
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)
    return safe.lstrip(".") or "model"


def _letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    ahead, last = divmod(number, 26)
    return (_letter(ahead - 1) if ahead else "") + chr(ord("A") + last)


def _export_one(domain: Domain, passes: pd.DataFrame, place: Path) -> str:
    """Write one strategy; why not, where it cannot be."""
    identity = str(passes["strategy_id"].iloc[0])
    seconds = [float(value) for value in passes.sort_values(["occasion", "pass"])["step_seconds"]]
    if not np.isfinite(seconds).all():
        return "failed when it was measured"
    strategy = from_json(Strategy, passes["strategy"].iloc[0], source=f"strategy {identity}")
    try:
        encoded = export_strategy(strategy, domain, allow_lossy=True)
    except NotSupported as error:
        return error.value if isinstance(error.value, str) else error.message
    (place / "strategies" / identity).write_bytes(encoded)
    (place / "resource_spec" / identity).write_text(write_resource_spec(domain.cluster))
    runtime = {"average": float(np.mean(seconds)), "runtime": seconds}
    (place / "runtime" / identity).write_text(yaml.safe_dump(runtime))
    return ""
