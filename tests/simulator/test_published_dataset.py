"""The layout of AutoSync's public dataset, read."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from autosync.cluster.link_rates import TCP_SHARE
from autosync.domain import Domain
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.interop.autodist_strategy import export_strategy
from autosync.interop.resource_spec import Hardware
from autosync.simulator.published_dataset import (
    DatasetFacts,
    ModelFacts,
    import_dataset,
    read_facts,
)
from autosync.simulator.runtime_dataset import load_dataset
from tests.autosync.interop.test_graph_items import FLOAT, GraphItemWriter
from tests.simulator.measurements import strategies_of, two_domains

FACTS = DatasetFacts(
    {"chain": ModelFacts(8, step_seconds=0.018)}, {"cluster-A": Hardware(intra_bandwidth_gbps=20.0)}
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clusters of one model, in the layout of the public dataset."""
    folder = tmp_path_factory.mktemp("published")
    for domain, letter in zip(two_domains(), "AB", strict=True):
        write_published(folder / "chain" / f"cluster-{letter}", domain)
    return folder


def write_published(place: Path, domain: Domain) -> None:
    """The strategies that AutoDist can express, measured in 0.1 s, 0.11 s, ..."""
    writer = GraphItemWriter()
    variables, names = domain.graph.variables, [each.name for each in domain.graph.variables]
    for variable in variables:
        writer.variable(variable.name, variable.shape, FLOAT)
    last = "batch"
    writer.node(last, "Placeholder")
    for name in names:
        writer.node(f"forward/{name}", "MatMul", last, f"{name}/Read")
        last = f"forward/{name}"
    for name in (names[index] for index in domain.graph.gradient_order):
        writer.node(f"gradient/{name}", "MatMul", last)
        writer.gradient(f"gradient/{name}:0", f"{name}:0")
        last = f"gradient/{name}"
    nodes = []
    for node in domain.cluster.nodes:
        rate, cpus = node.bandwidth_gbps / TCP_SHARE, list(range(node.ranks))
        nodes.append({"address": node.address, "cpus": cpus, "network_bandwidth": rate})
    for kind in ("strategies", "runtime", "resource_spec"):
        (place / kind).mkdir(parents=True)
    (place.parent / "graph_item").write_bytes(writer.bytes())
    for number, strategy in enumerate(strategies_of(domain).values()):
        with suppress(NotSupported):
            data = export_strategy(strategy, domain, allow_lossy=True)
            seconds = 0.1 + 0.01 * number
            runtime = {"average": seconds, "runtime": [seconds, seconds]}
            (place / "strategies" / strategy.id).write_bytes(data)
            (place / "runtime" / strategy.id).write_text(yaml.safe_dump(runtime))
            (place / "resource_spec" / strategy.id).write_text(yaml.safe_dump({"nodes": nodes}))


def test_samples_are_read(published: Path, tmp_path: Path) -> None:
    taken = import_dataset(published, tmp_path, FACTS)
    assert not taken.left_out
    expected = {
        strategy.id: 0.1 + 0.01 * number
        for domain in two_domains()
        for number, strategy in enumerate(strategies_of(domain).values())
    }
    assert len(taken.trials) > 4
    measured = taken.trials.set_index("strategy_id")["step_seconds"]
    assert measured.to_dict() == pytest.approx({each: expected[each] for each in measured.index})
    again = load_dataset(tmp_path)
    assert [each.name for each in again] == ["chain, cluster-A-1", "chain, cluster-B-1"]
    first = two_domains()[0]
    assert again[0].domain.cluster.nodes[0].devices == first.cluster.nodes[0].devices
    assert again[0].domain.graph.variables == first.graph.variables
    assert again[0].domain.profile.compute_seconds == pytest.approx(0.018)


def test_a_model_may_be_named_by_a_path(published: Path, tmp_path: Path) -> None:
    facts = DatasetFacts({f"{published.name}/chain/": FACTS.models["chain"]}, FACTS.clusters)
    taken = import_dataset(published.parent, tmp_path, facts)
    assert {each.graph.name for each in taken.domains} == {"chain"}


def test_a_folder_without_strategies_is_no_cluster(published: Path, tmp_path: Path) -> None:
    (copied(published, tmp_path / "in") / ".ipynb_checkpoints").mkdir()
    by_cluster = ModelFacts(8, {"cluster-A": 0.018, "cluster-B": 0.018})
    taken = import_dataset(
        tmp_path / "in", tmp_path / "out", DatasetFacts({"chain": by_cluster}, FACTS.clusters)
    )
    assert not taken.left_out
    assert len(taken.domains) == 2


def test_other_names_of_the_same(published: Path, tmp_path: Path) -> None:
    """A folder `strategy`, files ending in .yml, and a sample of a strategy measured before."""
    place = copied(published, tmp_path / "in") / "cluster-B"
    shutil.rmtree(place.parent / "cluster-A")
    (place / "strategies").rename(place / "strategy")
    name = sorted(path.name for path in (place / "strategy").iterdir())[0]
    for kind in ("runtime", "resource_spec"):
        (place / kind / name).rename(place / kind / f"{name}.yml")
        (place / kind / "zz").write_text((place / kind / f"{name}.yml").read_text())
    (place / "strategy" / "zz").write_bytes((place / "strategy" / name).read_bytes())
    taken = import_dataset(tmp_path / "in", tmp_path / "out", FACTS)
    assert not taken.left_out
    again = taken.trials[taken.trials["strategy_id"] == name]
    assert sorted(again["pass"]) == [1, 2]


def test_damaged_samples_are_left_out_and_told(published: Path, tmp_path: Path) -> None:
    place = copied(published, tmp_path / "in") / "cluster-B"
    first, second, third, fourth, *_ = sorted(path.name for path in (place / "runtime").iterdir())
    (place / "runtime" / first).write_text("average: fast\nruntime: [1.0]\n")
    (place / "strategies" / second).write_bytes(b"\x0a\xff")
    text = (place / "resource_spec" / third).read_text()
    (place / "resource_spec" / third).write_text(text.replace("network_bandwidth", "bandwidth"))
    (place / "runtime" / fourth).unlink()
    taken = import_dataset(tmp_path / "in", tmp_path / "out", FACTS)
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
    shutil.copytree(published, folder)
    return folder / "chain"


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (ModelFacts(8), "how long a step computes on cluster-A"),
        (ModelFacts(8, {"cluster-A": 0.1}), "on cluster-B"),
    ],
)
def test_facts_that_are_missing(
    chain: ModelFacts, why: str, published: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=why):
        import_dataset(published, tmp_path, DatasetFacts({"chain": chain}, FACTS.clusters))


def test_models_that_are_missing(published: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no model 'bert'"):
        import_dataset(published, tmp_path, DatasetFacts({"bert": ModelFacts(8, 0.1)}))
    (tmp_path / "empty" / "bert").mkdir(parents=True)
    with pytest.raises(InvalidInput, match=r"cannot read .*graph_item"):
        import_dataset(tmp_path / "empty", tmp_path, DatasetFacts({"bert": ModelFacts(8, 0.1)}))


def test_facts_are_read_strictly(tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text("models: {chain: {batch_size: 8, step_seconds: 0.018}}\n")
    assert read_facts(file) == DatasetFacts({"chain": ModelFacts(8, 0.018)})
    file.write_text("models: {chain: {batch: 8}}\n")
    with pytest.raises(InvalidInput, match=r"models\.chain\.batch"):
        read_facts(file)
