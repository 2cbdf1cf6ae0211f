"""Commands that run nothing: rank, verify, explain, import, models, clusters, schema."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from autosync.api.cli import model_arguments
from autosync.api.cli.domain_arguments import load_strategy_or_bundle
from autosync.bundle import Evidence, load_bundle, make_bundle
from autosync.cluster import Device
from autosync.cluster.cluster_file import load_cluster, parse_cluster, save_cluster
from autosync.documents import from_json, to_json
from autosync.domain import usual_optimizer
from autosync.errors import InvalidInput
from autosync.extensions.staleness.document import Staleness
from autosync.extensions.staleness.proposals import clocked_servers
from autosync.graph import ModelGraph
from autosync.search.designs.known_designs import all_reduce_5mb, all_reduce_25mb
from autosync.simulator.cost.applied_constants import uses_tcp
from autosync.simulator.memory.memory_check import most_peak_bytes
from autosync.strategy import Schedule
from tests.api.cli.command import autosync, small_inputs
from tests.autosync.interop import onnx_files
from tests.domains import domain_of, grid_cluster
from tests.placed_models import heavy_layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rank")
    small_inputs(made)
    return made


@pytest.fixture(scope="module")
def ranked(folder: Path) -> list[dict[str, object]]:
    done = autosync(folder, "rank", "chain.json", "pair.yaml", "--proposals", "200", "--json")
    assert "estimate" in done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_placements_are_ranked_where_they_are_asked_for(folder: Path) -> None:
    where = heavy_layers(gbps=0.05)
    (folder / "layers.json").write_text(to_json(where.graph))
    save_cluster(where.cluster, folder / "slow.yaml")
    options = ("layers.json", "slow.yaml", "--proposals", "100", "--json")
    best = json.loads(autosync(folder, "rank", *options, "--placement").stdout)[0]
    assert best["origin"] in ("placed", "placed_by_policy")
    assert best["strategy"]["placement"]
    assert " on rank " in best["words"]
    plain = json.loads(autosync(folder, "rank", *options).stdout)
    assert not any("placement" in each["strategy"] for each in plain)


def test_the_fastest_comes_first(ranked: list[dict[str, object]]) -> None:
    seconds = [float(str(each["predicted_seconds"])) for each in ranked]
    assert len(ranked) == 10
    assert seconds == sorted(seconds)
    assert [each["rank"] for each in ranked] == list(range(1, 11))


def test_a_ranked_strategy_verifies_and_explains_itself(
    folder: Path, ranked: list[dict[str, object]]
) -> None:
    (folder / "best.json").write_text(json.dumps(ranked[0]["strategy"]))
    sound = autosync(folder, "verify", "best.json", "chain.json", "pair.yaml")
    assert "Sound" in sound.stdout
    words = autosync(folder, "explain", "best.json").stdout
    assert all(f"v{i}" in words for i in range(6))


def test_a_bundle_of_an_earlier_version_is_read_as_a_job_reads_it() -> None:
    written = Path(__file__).parents[2] / "autosync" / "plan" / "bundle_version_1.json"
    assert load_strategy_or_bundle(written) == load_bundle(written)


def test_a_ranked_strategy_follows_the_printed_schema(
    folder: Path, ranked: list[dict[str, object]]
) -> None:
    schema = json.loads(autosync(folder, "schema", "Strategy").stdout)
    jsonschema.validate(ranked[0]["strategy"], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"choices": []}, schema)


def test_late_updates_verify_where_they_are_allowed(folder: Path) -> None:
    domain = domain_of(load_graph(folder), load_cluster(folder / "pair.yaml"))
    (folder / "late.json").write_text(to_json(clocked_servers(domain).carrying(Staleness(2))))
    command = ("verify", "late.json", "chain.json", "pair.yaml")
    refused = autosync(folder, *command, code=2)
    assert "lets a replica lag 2 iterations" in refused.stderr
    assert "Allow staleness" in refused.stderr
    assert "Sound" in autosync(folder, *command, "--allow-inexact").stdout
    mixed = replace(all_reduce_5mb(domain), schedule=Schedule(overlap_forward=True)).carrying(
        Staleness(2)
    )
    (folder / "late.json").write_text(to_json(mixed))
    refused = autosync(folder, *command, "--allow-inexact", code=2)
    assert "continue during the next forward pass" in " ".join(refused.stderr.split())


def load_graph(folder: Path) -> ModelGraph:
    return from_json(ModelGraph, (folder / "chain.json").read_text())


def test_a_strategy_for_another_graph_is_refused(
    folder: Path, ranked: list[dict[str, object]]
) -> None:
    (folder / "other.json").write_text(json.dumps(ranked[0]["strategy"]))
    refused = autosync(folder, "verify", "other.json", "resnet50", "pair.yaml", code=2)
    assert "v0" in refused.stderr
    assert "Way out" in refused.stderr


def test_the_memory_of_a_bundle_is_that_of_its_batches_an_update(folder: Path) -> None:
    """Gradients of the batches before lie beside the buffers of the messages."""
    graph = load_graph(folder)
    domain = domain_of(graph, grid_cluster(2), optimizer=usual_optimizer(graph))
    several = replace(domain, accumulate=2)
    strategy = all_reduce_25mb(domain)
    (one,), (two,) = (most_peak_bytes(each, [strategy]) for each in (domain, several))
    assert one < two
    devices = (Device("cpu", 1, (one + two) / 2e9),)
    nodes = tuple(replace(node, devices=devices) for node in domain.cluster.nodes)
    save_cluster(replace(domain.cluster, nodes=nodes), folder / "small.yaml")
    for name, given in (("one.json", Evidence()), ("two.json", Evidence(accumulate=2))):
        (folder / name).write_text(to_json(make_bundle(strategy, several, given)))
    asked = ("chain.json", "small.yaml")
    assert "Sound" in autosync(folder, "verify", "one.json", *asked).stdout
    for command in (("two.json", *asked), ("one.json", *asked, "--accumulate", "2")):
        refused = autosync(folder, "verify", *command, code=2)
        assert "does not fit" in refused.stderr
    assert "Sound" in autosync(folder, "verify", "two.json", *asked, "--accumulate", "1").stdout


def test_the_table_marks_ddp_and_that_nothing_ran(folder: Path) -> None:
    options = ("--proposals", "50", "--top", "3", "--simulator", "analytic")
    table = autosync(folder, "rank", "chain.json", "pair.yaml", *options).stdout
    assert "DDP" in table
    assert "nothing was run" in table


def test_brackets_in_names_are_printed_as_they_are(folder: Path) -> None:
    """They are no markup of the terminal's."""
    graph = replace(load_graph(folder), name="net[/]v2[bold]")
    (folder / "odd.json").write_text(to_json(graph))
    options = ("--proposals", "50", "--simulator", "analytic")
    assert graph.name in autosync(folder, "rank", "odd.json", "pair.yaml", *options).stderr
    assert graph.name in autosync(folder, "models", "odd.json").stdout
    strategy = all_reduce_5mb(domain_of(graph, load_cluster(folder / "pair.yaml")))
    (folder / "odd_strategy.json").write_text(to_json(replace(strategy, name="mine[/]")))
    assert "mine[/]" in autosync(folder, "explain", "odd_strategy.json").stdout


def test_models_and_clusters_are_listed(folder: Path) -> None:
    models = {model["name"] for model in json.loads(autosync(folder, "models", "--json").stdout)}
    assert {"resnet50", "vgg16", "bert_base"} <= models
    names = {each["name"] for each in json.loads(autosync(folder, "clusters", "--json").stdout)}
    assert "example-4x1" in names
    table = autosync(folder, "clusters", "--device", "h100", "--find", "aws").stdout
    assert "aws-p5-48xlarge-x4" in table
    assert "220.16" in table  # dollars an hour, four nodes
    assert "azure" not in table


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("clusters", "example-4x1", "--device", "h100"), "--device"),
        (("clusters", "example-4x1", "--ranks", "4"), "--ranks"),
        (("clusters", "example-4x1", "--find", "example"), "--find"),
        (("models", "--batch", "8"), "--batch"),
    ],
)
def test_an_option_of_the_list_or_of_one_alone_is_refused_with_the_other(
    folder: Path, words: tuple[str, ...], option: str
) -> None:
    assert f"{option} has no effect" in autosync(folder, *words, code=2).stderr


def test_a_hostfile_becomes_a_cluster_file(folder: Path) -> None:
    (folder / "hosts.txt").write_text("node-1 slots=2\nnode-2 slots=2\n")
    (folder / "topo.txt").write_text("GPU0 GPU1\nGPU0 X NV12\nGPU1 NV12 X\n")
    stated = ("--device", "a100", "--port-gbps", "100", "--topo", "topo.txt", "-o", "new.yaml")
    autosync(folder, "import-cluster", "hostfile", "hosts.txt", *stated)
    cluster = load_cluster(folder / "new.yaml")
    assert cluster.world_size == 4
    assert cluster.nodes[0].intra_bandwidth_gbps == 1872.0
    refused = autosync(folder, "import-cluster", "hostfile", "hosts.txt", *stated[2:4], code=2)
    assert "type of its devices is not stated" in " ".join(refused.stderr.split())


def test_nothing_that_is_stated_about_hosts_is_ignored_without_a_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "topo.txt").write_text("GPU0 GPU1\nGPU0 X NV12\nGPU1 NV12 X\n")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[1-4]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x4)")
    stated = ("--device", "a100", "--port-gbps", "100", "--transport", "roce")

    def ranks(*options: str) -> tuple[int, str]:
        done = autosync(folder, "import-cluster", "slurm", *stated, *options)
        cluster = parse_cluster(done.stdout, "stdout")
        return cluster.world_size, " ".join(done.stderr.split())

    world_size, notes = ranks("--per-host", "8", "--intra-gbps", "900")
    assert world_size == 32
    assert "SLURM_TASKS_PER_NODE=1(x4) is not used" in notes
    world_size, notes = ranks("--topo", "topo.txt")
    assert world_size == 8
    assert "--topo states 2 devices a host, SLURM_TASKS_PER_NODE=1(x4) is not used" in notes
    world_size, notes = ranks()
    assert world_size == 4
    assert "where torchrun starts more in a task, state --per-host" in notes
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "8(x3),4")
    world_size, notes = ranks("--per-host", "8", "--intra-gbps", "900")
    assert world_size == 32
    assert "SLURM_TASKS_PER_NODE=8(x3),4 is not used" in notes


def test_a_specification_takes_stated_ports_and_its_transport_counts_before_the_latency(
    folder: Path,
) -> None:
    (folder / "spec.yml").write_text("nodes: [{address: a, gpus: [0]}, {address: b, gpus: [1]}]")
    stated = ("--device", "v100", "--port-gbps", "25", "--nics", "2")
    done = autosync(folder, "import-cluster", "autodist", "spec.yml", *stated)
    node = parse_cluster(done.stdout, "stdout").nodes[0]
    assert (node.bandwidth_gbps, node.nics) == (47.8, 2)
    assert "TCP is assumed" in done.stderr
    slow = ("--transport", "infiniband", "--latency-us", "30")
    done = autosync(folder, "import-cluster", "autodist", "spec.yml", *stated, *slow)
    cluster = parse_cluster(done.stdout, "stdout")
    assert (cluster.transport, cluster.nodes[0].nic_gbps) == ("infiniband", 25.0)
    assert not uses_tcp(cluster)


def test_a_bundled_cluster_is_printed_as_a_file_that_loads(folder: Path) -> None:
    (folder / "mine.yaml").write_text(autosync(folder, "clusters", "example-4x1").stdout)
    shown = json.loads(autosync(folder, "clusters", "mine.yaml", "--json").stdout)
    assert shown["name"] == "example-4x1"


VALUES = """
import torch

class Picky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.idle = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)

    def forward(self, x):
        return {"loss": self.layer(x[x[:, 0] > 0]).sum()}

def picky():
    return Picky(), {"x": torch.ones(8, 4)}, None
"""


def test_import_of_a_step_that_depends_on_values(folder: Path) -> None:
    (folder / "mine.py").write_text(VALUES)
    refused = autosync(folder, "import", "mine:picky", "-o", "picky.json", code=2)
    words = " ".join(refused.stderr.split())
    assert "mine.py:10 in forward" in words
    assert "--values" in words
    told = autosync(folder, "import", "mine:picky", "--values", "-o", "picky.json")
    assert "'idle.weight', 'idle.bias'" in " ".join(told.stderr.split())
    graph = json.loads((folder / "picky.json").read_text())
    assert len(graph["variables"]) == 4


@pytest.mark.parametrize(
    ("typed", "way"),
    [
        ("mine.py", "mine:tiny or mine:other:"),
        ("./mine:tiny", "mine:tiny:"),
        ("parts/net.py:build", "parts.net:build:"),
        ("../else/net.py:build", "net:build in the folder ../else:"),
        ("absent.py", "absent:FUNCTION:"),
    ],
)
def test_a_path_in_the_place_of_a_module_hints_at_the_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, way: str
) -> None:
    (folder / "mine.py").write_text(FUNCTIONS)
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidInput, match="names a file") as caught:
        model_arguments.load_graph(typed, None)
    assert caught.value.remedy.startswith(f"Give {way}")
    named = typed.startswith(("mine", "./mine"))
    assert ("There is no file" in caught.value.message) == (not named)


FUNCTIONS = """
def tiny():
    pass

def other(size=3, *, wide=True):
    pass

def needs(x):
    pass

def _own():
    pass
"""


@pytest.mark.parametrize(
    "command", [("import", "mine.py", "-o", "out.json"), ("profile", "mine.py")]
)
def test_commands_refuse_a_path_in_the_place_of_a_module(
    folder: Path, command: tuple[str, ...]
) -> None:
    (folder / "mine.py").write_text(FUNCTIONS)
    said = " ".join(autosync(folder, *command, code=2).stderr.split())
    assert "names a file, a model is a function in a module" in said
    assert "Way out: Give mine:tiny or mine:other:" in said


def test_import_of_a_function_of_ones_own(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import torch\n\n\ndef tiny():\n"
        "    return torch.nn.Linear(4, 2), (torch.zeros(8, 4),), lambda y, x: y.sum()\n"
    )
    for named in ("mine:tiny", "mine.py:tiny"):  # the latter as `autosync diagnose` has it
        autosync(folder, "import", named, "-o", "tiny.json")
        graph = json.loads((folder / "tiny.json").read_text())
        assert [variable["name"] for variable in graph["variables"]] == ["weight", "bias"]
        assert (graph["name"], graph["batch_size"]) == ("tiny", 8)
    for command in (("import", "-o", "other.json"), ("profile",)):
        refused = autosync(folder, command[0], "mine:tiny", "--batch", "16", *command[1:], code=2)
        assert "makes inputs of batch size 8, but --batch is 16" in " ".join(refused.stderr.split())


MIXED = """
import torch

def lowered():
    def loss(outputs, inputs):
        assert outputs.dtype == torch.bfloat16
        return outputs.sum()

    return torch.nn.Linear(4, 2), (torch.zeros(8, 4),), loss

def whole():
    return *lowered()[:2], lambda outputs, inputs: outputs.sum()
"""


def test_a_profile_under_autocast_fits_the_graph_recorded_under_it(folder: Path) -> None:
    (folder / "mixed.py").write_text(MIXED)
    lowered = ("mixed:lowered", "--autocast", "bfloat16", "-o")
    autosync(folder, "import", *lowered, "lowered.json")
    autosync(folder, "profile", *lowered, "profile.json", "--iterations", "1")
    options = ("pair.yaml", "--profile", "profile.json", "--proposals", "50")
    told = autosync(folder, "rank", "lowered.json", *options, "--simulator", "analytic").stderr
    assert "of 1 steps under autocast to torch.bfloat16" in " ".join(told.split())
    refused = autosync(folder, "rank", "mixed:whole", *options, code=2).stderr
    assert "the same model with the same --autocast" in " ".join(refused.split())


def test_import_of_an_onnx_file(folder: Path) -> None:
    node = onnx_files.node("MatMul", "x w", "y", "product")
    odd = onnx_files.node("Frobnicate", "y", "z")
    file = onnx_files.model(
        (node, odd), (onnx_files.value("x", ("batch", 8)),), (onnx_files.weight("w", 8, 16),)
    )
    (folder / "linear.onnx").write_bytes(file)
    told = autosync(folder, "import", "linear.onnx", "--batch", "4", "-o", "linear.json")
    assert "Frobnicate (1)" in " ".join(told.stderr.split())
    graph = json.loads((folder / "linear.json").read_text())
    assert (graph["name"], graph["batch_size"]) == ("linear", 4)
    refused = autosync(folder, "import", "linear.onnx", code=2)
    assert "--batch 32" in " ".join(refused.stderr.split())
    missing = autosync(folder, "import", "absent.onnx", "--batch", "4", code=2)
    assert "cannot read the ONNX file" in " ".join(missing.stderr.split())


def test_a_config_without_an_architecture_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"}')
    refused = autosync(folder, "import", "config.json", "--batch", "4", code=2)
    assert "names no architecture" in " ".join(refused.stderr.split())


def test_a_trace_is_a_profile(folder: Path) -> None:
    (folder / "trace.json").write_text('{"traceEvents": []}')
    options = ("--device", "v100", "--trace", "trace.json")
    refused = autosync(folder, "profile", "chain.json", *options, code=2)
    assert "no operators on the CPU" in " ".join(refused.stderr.split())
