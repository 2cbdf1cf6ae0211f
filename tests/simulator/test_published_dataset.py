"""The layout of AutoSync's public dataset, out and back in."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from autosync.errors import InvalidInput, NotFound
from autosync.interop.resource_spec import Hardware
from autosync.simulator.published_dataset import (
    DatasetFacts,
    ExportedDataset,
    ImportedDataset,
    ModelFacts,
    export_dataset,
    import_dataset,
    read_facts,
)
from autosync.simulator.runtime_dataset import load_dataset, read_trials
from tests.autosync.interop.protos import parsed
from tests.simulator.measurements import DESIGNED, SAMPLED, write_small

FACTS = DatasetFacts(
    {"chain": ModelFacts(8, step_seconds=0.018)},
    {"cluster-A": Hardware(intra_bandwidth_gbps=20.0)},
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    write_small(folder)
    return folder


@pytest.fixture(scope="module")
def published(ours: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportedDataset]:
    folder = tmp_path_factory.mktemp("published") / "out"
    return folder, export_dataset(ours, folder)


def imported(published: Path, out: Path, facts: DatasetFacts = FACTS) -> ImportedDataset:
    return import_dataset(published, out, facts)


def test_what_is_written(published: tuple[Path, ExportedDataset]) -> None:
    folder, done = published
    assert done.places == {"chain/cluster-A": "chain, grid", "chain/cluster-B": "chain, row"}
    assert done.left_out["has the sending order ddp"] == 2
    assert done.left_out["is synchronized by reduce_scatter"] >= 2
    assert done.left_out["failed when it was measured"] == 1
    assert done.written + done.left_out.total() == 2 * (len(DESIGNED) + SAMPLED)
    assert any("latency" in sentence for sentence in done.left_out_of_specs)
    place = folder / "chain" / "cluster-B"
    names = [
        sorted(path.name for path in (place / kind).iterdir())
        for kind in ("strategies", "runtime", "resource_spec")
    ]
    assert names[0] == names[1] == names[2]
    runtime = yaml.safe_load((place / "runtime" / names[0][0]).read_text())
    assert runtime["average"] == pytest.approx(np.mean(runtime["runtime"]))
    message = parsed("Strategy", (place / "strategies" / names[0][0]).read_bytes())
    assert message.id == names[0][0]
    assert len(message.graph_config.replicas) == 4
    assert parsed("GraphItem", (folder / "chain" / "graph_item").read_bytes()).HasField("info")


def test_it_comes_back(ours: Path, published: tuple[Path, ExportedDataset], tmp_path: Path) -> None:
    folder, done = published
    taken = imported(folder, tmp_path)
    assert not taken.left_out
    assert len(taken.trials) == done.written
    before = read_trials(ours).groupby("strategy_id")["step_seconds"].mean()
    after = taken.trials.set_index("strategy_id")["step_seconds"]
    assert after.to_dict() == pytest.approx(before[after.index].to_dict())
    again = load_dataset(tmp_path)
    assert [each.name for each in again] == ["chain, cluster-A-1", "chain, cluster-B-1"]
    first = load_dataset(ours)[0].domain
    assert again[0].domain.cluster.nodes[0].devices == first.cluster.nodes[0].devices
    assert again[0].domain.graph.variables == first.graph.variables
    assert again[0].domain.profile.compute_seconds == pytest.approx(0.018)


def test_other_names_of_the_same(published: tuple[Path, ExportedDataset], tmp_path: Path) -> None:
    """A folder `strategy`, files ending in .yml, and a sample of a strategy measured before."""
    place = copied(published[0], tmp_path / "in") / "cluster-B"
    (place / "strategies").rename(place / "strategy")
    name = sorted(path.name for path in (place / "strategy").iterdir())[0]
    for kind in ("runtime", "resource_spec"):
        (place / kind / name).rename(place / kind / f"{name}.yml")
        (place / kind / "zz").write_text((place / kind / f"{name}.yml").read_text())
    (place / "strategy" / "zz").write_bytes((place / "strategy" / name).read_bytes())
    taken = imported(tmp_path / "in", tmp_path / "out")
    assert not taken.left_out
    again = taken.trials[taken.trials["strategy_id"] == name]
    assert sorted(again["pass"]) == [1, 2]


def test_damaged_samples_are_left_out_and_told(
    published: tuple[Path, ExportedDataset], tmp_path: Path
) -> None:
    place = copied(published[0], tmp_path / "in") / "cluster-B"
    first, second, third, fourth, *_ = sorted(path.name for path in (place / "runtime").iterdir())
    (place / "runtime" / first).write_text("average: fast\nruntime: [1.0]\n")
    (place / "strategies" / second).write_bytes(b"\x0a\xff")
    text = (place / "resource_spec" / third).read_text()
    (place / "resource_spec" / third).write_text(text.replace("network_bandwidth", "bandwidth"))
    (place / "runtime" / fourth).unlink()
    taken = imported(tmp_path / "in", tmp_path / "out")
    told = {each.sample.rpartition("/")[2]: each.message for each in taken.left_out}
    assert "must be positive seconds" in told[first]
    assert "the Strategy is damaged" in told[second]
    assert "unknown field 'bandwidth'" in told[third]
    assert "there is no runtime" in told[fourth]
    assert {each.reason for each in taken.left_out} == {
        "is refused (InvalidInput)",
        "is refused (NotFound)",
    }
    assert len(told) == 4


def copied(published: Path, folder: Path) -> Path:
    for path in published.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(published)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return folder / "chain"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (
            DatasetFacts({"chain": ModelFacts(8)}, FACTS.clusters),
            "how long a step computes on cluster-A",
        ),
        (
            DatasetFacts({"chain": ModelFacts(8, {"cluster-A": 0.1})}, FACTS.clusters),
            "on cluster-B",
        ),
    ],
)
def test_facts_that_are_missing(
    facts: DatasetFacts, why: str, published: tuple[Path, ExportedDataset], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=why):
        imported(published[0], tmp_path, facts)


def test_models_that_are_missing(published: tuple[Path, ExportedDataset], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no model 'bert'"):
        imported(published[0], tmp_path, DatasetFacts({"bert": ModelFacts(8, 0.1)}))
    (tmp_path / "empty" / "bert").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"cannot read .*graph_item"):
        imported(tmp_path / "empty", tmp_path, DatasetFacts({"bert": ModelFacts(8, 0.1)}))


def test_facts_are_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text("models: {chain: {batch_size: 8, step_seconds: 0.018}}\n")
    assert read_facts(file) == DatasetFacts({"chain": ModelFacts(8, 0.018)})
    file.write_text("models: {chain: {batch: 8}}\n")
    with pytest.raises(InvalidInput, match=r"models\.chain\.batch"):
        read_facts(file)


def test_a_folder_that_holds_something_is_left_alone(ours: Path) -> None:
    with pytest.raises(InvalidInput, match="is not empty"):
        export_dataset(ours, ours)
