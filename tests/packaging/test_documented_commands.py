"""Every `autosync` command that a page shows is run, here or by a test that is named here."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer
from torch import nn, zeros
from typer.testing import CliRunner

from autosync.api.cli.main import app
from autosync.documents import to_json
from autosync.search.designs.known_designs import all_reduce_25mb
from tests.api.cli.command import small_inputs
from tests.autosync.diagnosis.traces import gloo_step
from tests.autosync.interop.onnx_files import exported
from tests.autosync.interop.test_gpu_topology import DGX_A100
from tests.autosync.interop.test_nccl_tests import ALL_GATHER, NEW
from tests.autosync.interop.test_resource_specs import TWO_NODES
from tests.domains import chain_graph, domain_of, grid_cluster
from tests.packaging.test_documentation import ROOT, pages
from tests.simulator.measurements import two_domains, write_small
from tests.simulator.test_published_dataset import write_published
from tests.torchvision_operators import declare_operators

declare_operators()  # transformers imports torchvision where it is installed

SHOWN = re.compile(r"^(?: {4})?(autosync [a-z].*?)(?:\s+#.*)?$")

SHORT = {
    "tune": "--budget 2 --repeats 1 --proposals 50 --launcher local --simulator timeline "
    "--byte-scale 0.01 --time-scale 1 --no-probe",
    "rank": "--proposals 500",
}
"""Added to commands, so that they end within seconds; of two values the last one counts."""

STORED, TUNE = "tests/api/cli/test_stored_tunings.py", "tests/api/cli/test_tune.py"
SERVE = "tests/api/cli/test_serve.py"
ELSEWHERE = {
    **dict.fromkeys(("tunings", "show ID", "logs -f ID", "cancel ID"), STORED),
    "export 3f2a90c1 --for ddp": STORED,
    "export 3f2a90c1 --for deepspeed -o deepspeed.json": STORED,
    "export 3f2a90c1 --for megatron -o arguments.txt": STORED,
    "export 3f2a90c1 --for torchtitan -o parallelism.toml": STORED,
    "export 3f2a90c1 --for accelerate": STORED,
    "export 3f2a90c1 --for nccl": STORED,
    "export 3f2a90c1 --for nccl -o nccl_tuner.conf": STORED,
    "export 3f2a90c1 --for ddp --strategy ID --json": STORED,
    "tune --resume ID": TUNE,
    "tune resnet50 my-cluster.yaml --from 3f2a90c1 -o better.json": TUNE,
    "serve": SERVE,
    "worker": SERVE,
    "serve --root-path /autosync": "tests/api/http/test_root_path.py",
    "worker --url https://tuner.example.com": "tests/packaging/test_containers.py",
}
"""What needs more than one command: the test in which it runs."""

INSTEAD = {
    "dataset import PUBLISHED OUT --facts FILE": "dataset import published OUT --facts facts.yaml",
    "dataset export-strategy best.json MODEL CLUSTER -o strategy": (
        "dataset export-strategy ours.json chain.json pair.yaml -o strategy"
    ),
    "dataset import-strategy strategy MODEL CLUSTER -o mine.json": (
        "dataset import-strategy strategy chain.json pair.yaml -o mine.json"
    ),
}
"""With names in the place of words that stand for them, and a strategy that the format can
express."""

NOT_HERE = {
    "tune resnet50 my-cluster.yaml --launcher command": "hosts that ssh reaches",
    "tune train:example my-cluster.yaml --launcher command": "hosts that ssh reaches",
    "tune --resume ID -o best.json --prefix 'srun": "a job of Slurm",
    "tune resnet50 my-cluster.yaml --launcher ray": "a running Ray cluster",
    "tune train:example my-cluster.yaml --launcher ray": "a running Ray cluster",
    "tune resnet50 my-cluster.yaml --compute kernels --compute-device cuda": "a GPU",
    "tune resnet50 example-4x1 --compute kernels --compute-device cuda": "a GPU",
    "import-cluster ray": "a running Ray cluster",
    "profile train:example --device cuda:0": "a GPU",
    "profile mine.json --device v100": "a trace of that GPU",
    "simulator train datasets/runtimes": "minutes; `simulator train measured` is the same on less",
    "rank bert_base my-cluster.yaml --simulator five-clusters": "the one trained above",
    "tune bert_base my-cluster.yaml --simulator five-clusters": "the one trained above",
    "simulator add five-clusters": "the one trained above",
    "serve --host 0.0.0.0": "listens beyond this machine",
}
"""What a test machine does not have; these are only parsed."""


def shown() -> dict[str, str]:
    """Command lines without `autosync`, and the first page of each."""
    found: dict[str, str] = {}
    for page in pages():
        for line in page.read_text().replace("\\\n", " ").splitlines():
            if match := SHOWN.match(line):
                command = re.sub(r"\s+", " ", match[1]).removeprefix("autosync ").strip()
                found.setdefault(command, str(page.relative_to(ROOT)))
    return found


def test_pages_show_commands_whose_options_exist() -> None:
    """Also those that do not run here. Placeholders are words like others."""
    assert len(shown()) > 40
    group = typer.main.get_command(app)
    for command, page in shown().items():
        found = group
        for word in (words := shlex.split(command.split(" > ")[0])):
            if isinstance(found, typer.core.TyperGroup) and not word.startswith("-"):
                assert word in found.commands, f"{page}: {command}: no {word}"
                found = found.commands[word]
        known = {"-h", "--help"}.union(*(each.opts + each.secondary_opts for each in found.params))
        for option in (word for word in words if word.startswith("-")):
            assert option.partition("=")[0] in known, f"{page}: {command}: no {option}"


FACTS = (
    "models: {chain: {batch_size: 8, step_seconds: 0.018}}\n"
    "clusters: {cluster-A: {intra_bandwidth_gbps: 20}}\n"
)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 2048,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files by the names that the pages give them."""
    made = tmp_path_factory.mktemp("documented")
    (made / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "network.py", made / "train.py")
    (made / "hosts.txt").write_text("10.0.0.1 slots=3\n10.0.0.2 slots=3\n")
    (made / "topo.txt").write_text(DGX_A100)
    (made / "resource_spec.yml").write_text(TWO_NODES)
    (made / "all_reduce.log").write_text(NEW)
    (made / "all_gather.log").write_text(ALL_GATHER)
    any_batch = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    (made / "exported.onnx").write_bytes(exported(nn.Linear(4, 2), (zeros(2, 4),), **any_batch))
    (made / "llama").mkdir()
    (made / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (made / "facts.yaml").write_text(FACTS)
    for rank in range(2):
        (made / f"rank{rank}.json").write_text(json.dumps(gloo_step(rank, 600, 900)))
    write_small(made / "FOLDER")
    write_small(made / "measured")
    write_published(made / "published" / "chain" / "cluster-A", two_domains()[0])
    small_inputs(made)
    (made / "ours.json").write_text(
        to_json(all_reduce_25mb(domain_of(chain_graph(), grid_cluster(2))))
    )
    return made


@pytest.fixture
def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))


def of_first_steps() -> list[str]:
    return [command for command, page in shown().items() if page == "docs/getting-started.md"]


@pytest.mark.timeout(900)  # tunings wait for each other's measurements on a machine
@pytest.mark.usefixtures("at_home")
def test_the_first_steps_run() -> None:
    """With one of the page's tunings."""
    for command in of_first_steps():
        if runs_here(command) and not command.startswith("tune examples."):
            run(command)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("at_home")
def test_they_run() -> None:
    """In the order of the pages, the first steps first: what one writes the next ones read."""
    for command in dict.fromkeys((*of_first_steps(), *shown())):
        if runs_here(command):
            run(INSTEAD.get(command, command))


def runs_here(command: str) -> bool:
    return command not in ELSEWHERE and not any(command.startswith(each) for each in NOT_HERE)


def test_a_page_shows_what_does_not_run_here_and_tests_that_run_it_exist() -> None:
    commands = shown()
    assert {*ELSEWHERE, *INSTEAD} <= set(commands)
    assert all((ROOT / file).is_file() for file in ELSEWHERE.values())
    for begin in NOT_HERE:
        assert any(command.startswith(begin) for command in commands), begin


def run(command: str) -> None:
    words, _, into = command.partition(" > ")
    more = next((text for begin, text in SHORT.items() if words.startswith(begin)), "")
    done = CliRunner().invoke(app, [*shlex.split(words), *shlex.split(more)])
    assert done.exit_code == 0, f"autosync {command}: {done.output}\n{done.exception!r}"
    if into:
        Path(into).write_text(done.stdout)
