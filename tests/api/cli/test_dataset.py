"""`autosync dataset`, as users run it."""

from pathlib import Path

from autosync.documents import from_json, to_json
from autosync.search.designs.known_designs import all_reduce_25mb, zero1
from autosync.strategy import Strategy
from tests.api.cli.command import autosync, small_inputs
from tests.autosync.interop.protos import parsed
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.simulator.measurements import two_domains, write_small
from tests.simulator.test_published_dataset import write_published


def test_a_published_dataset_is_described_and_read(tmp_path: Path) -> None:
    write_small(tmp_path / "ours")
    output = autosync(tmp_path, "dataset", "describe", "ours", "--datasheet", "sheet.md").stdout
    assert "chain" in output
    assert "row" in output
    assert (tmp_path / "sheet.md").read_text().startswith("# Measured runtimes")
    write_published(tmp_path / "published" / "chain" / "cluster-A", two_domains()[1])
    facts = "models: {chain: {batch_size: 8, step_seconds: 0.018}}\n"
    (tmp_path / "facts.yaml").write_text(facts)
    arguments = ("dataset", "import", "published", "again", "--facts", "facts.yaml")
    assert "samples of 1 domains" in autosync(tmp_path, *arguments).stdout
    assert "cluster-A-1" in autosync(tmp_path, "dataset", "describe", "again").stdout


def test_a_strategy_out_and_back(tmp_path: Path) -> None:
    model, cluster = small_inputs(tmp_path)
    domain = domain_of(chain_graph(), grid_cluster(2))
    strategy = all_reduce_25mb(domain)
    (tmp_path / "ours.json").write_text(to_json(strategy))
    autosync(tmp_path, *f"dataset export-strategy ours.json {model} {cluster} -o theirs".split())
    assert len(parsed("Strategy", (tmp_path / "theirs").read_bytes()).node_config) == 6
    autosync(tmp_path, *f"dataset import-strategy theirs {model} {cluster} -o again.json".split())
    assert from_json(Strategy, (tmp_path / "again.json").read_text()).id == strategy.id


def test_what_the_format_cannot_express_is_refused_by_name(tmp_path: Path) -> None:
    model, cluster = small_inputs(tmp_path)
    strategy = zero1(domain_of(chain_graph(), grid_cluster(2)))
    (tmp_path / "ours.json").write_text(to_json(strategy))
    arguments = f"dataset export-strategy ours.json {model} {cluster} -o theirs".split()
    output = autosync(tmp_path, *arguments, code=2).stderr
    assert "variable v0 is synchronized by reduce_scatter" in output
    assert not (tmp_path / "theirs").exists()


def test_bytes_that_are_no_strategy(tmp_path: Path) -> None:
    model, cluster = small_inputs(tmp_path)
    (tmp_path / "theirs").write_bytes(b"\x1a\x7fno")
    arguments = f"dataset import-strategy theirs {model} {cluster} -o again.json".split()
    assert "theirs: the Strategy is damaged" in autosync(tmp_path, *arguments, code=2).stderr


def test_folders_that_are_no_dataset(tmp_path: Path) -> None:
    assert "trials.parquet" in autosync(tmp_path, "dataset", "describe", "nowhere", code=2).stderr
    arguments = ("dataset", "import", ".", "out", "--facts", "facts.yaml")
    assert "facts.yaml" in autosync(tmp_path, *arguments, code=2).stderr
    (tmp_path / "facts.yaml").write_text("models: {bert: {batch_size: 8}}")
    assert "no model 'bert'" in autosync(tmp_path, *arguments, code=2).stderr
