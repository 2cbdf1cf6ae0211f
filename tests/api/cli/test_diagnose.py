"""`autosync diagnose`: of traces, and under torchrun."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autosync.api.cli.main import app
from autosync.errors import AutosyncError
from tests.api.cli.command import autosync
from tests.api.http.serving import free_port
from tests.autosync.diagnosis.traces import gloo_step, nccl_step

SCRIPT = """
import os
import torch
from torch import nn

def example():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    loss = lambda outputs, rows, classes: nn.functional.cross_entropy(outputs, classes)
    return module, (torch.randn(8, 16), torch.randint(4, (8,))), loss

class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.of_first = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, rows):
        return self.used(rows) + (self.of_first(rows) if os.environ["RANK"] == "0" else 0.0)

def partly():
    _, inputs, loss = example()
    return Partly(), inputs, loss

def broken():
    return nn.Linear(16, 4), (torch.randn(8, 3),), None

def lowered():
    def loss(outputs, rows, classes):
        assert outputs.dtype == torch.bfloat16
        return nn.functional.cross_entropy(outputs, classes)

    module, inputs, _ = example()
    return module, inputs, loss
"""
DIAGNOSED = ("diagnose", "--wrap", "ddp", "--iterations", "2", "--no-predict")


def refusal(*words: str) -> AutosyncError:
    raised = CliRunner().invoke(app, ["diagnose", *words]).exception
    assert isinstance(raised, AutosyncError)
    return raised


def test_traces_of_all_ranks(tmp_path: Path) -> None:
    plain, packed, page = tmp_path / "0.json", tmp_path / "1.json.gz", tmp_path / "page.html"
    plain.write_text(json.dumps(gloo_step(0, 530, 900)))
    packed.write_bytes(gzip.compress(json.dumps(gloo_step(1, 700, 900)).encode()))
    words = ["diagnose", "--trace", str(plain), "--trace", str(packed), "--json", "-o", str(page)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["breakdown"]["slowest"]["rank"] == 1
    assert found["verdict"].startswith("Worth tuning: up to")
    assert found["verdict"] in page.read_text()
    alone = CliRunner().invoke(app, ["diagnose", "--trace", str(plain)], catch_exceptions=False)
    assert "those of 1 of 2 ranks" in alone.stdout
    assert "of 2 ranks" not in " ".join(found["notes"])


@pytest.mark.parametrize(("end_us", "is_told"), [(1200, False), (1600, True)])
def test_a_host_that_runs_ahead_of_its_gpu_is_told(
    tmp_path: Path, end_us: int, is_told: bool
) -> None:
    """The mark of its iteration ends at 1,000 us, and its last kernel later."""
    made, file = nccl_step(0), tmp_path / "0.json"
    made["traceEvents"][-1]["dur"] = end_us - made["traceEvents"][-1]["ts"]
    file.write_text(json.dumps(made))
    words = ["diagnose", "--trace", str(file), "--json"]
    notes = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)["notes"]
    told = [note for note in notes if note.startswith("GPUs went on for")]
    assert len(told) == is_told
    assert all("for 0.60 ms after" in note for note in told)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "MODEL or --trace" in refusal().message
    assert "no rank of a job" in refusal("train.py:example").message
    assert "No such file" in refusal("--trace", str(tmp_path / "none.json")).message
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    assert "empty.json" in refusal("--trace", str(empty)).message


@pytest.mark.parametrize(
    "given",
    [
        ("--wrap", "fsdp2"),
        ("--optimizer", "adamw"),
        ("--autocast", "bfloat16"),
        ("--iterations", "4"),
        ("--predict",),
        ("--no-predict",),
    ],
    ids=lambda given: given[0],
)
def test_options_of_a_model_are_refused_beside_traces(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    file = tmp_path / "0.json"
    file.write_text(json.dumps(gloo_step(0, 530, 900)))
    raised = refusal("--trace", str(file), *given)
    assert f"{given[0]} has no effect beside --trace" in raised.message
    assert "Leave it out" in raised.remedy


@pytest.mark.parametrize("function", ["example", "partly"])
def test_ranks_of_torchrun(tmp_path: Path, function: str) -> None:
    """Also where one rank leaves parameters without a gradient, of which DDP must be told."""
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "-m", "autosync", *DIAGNOSED, f"train.py:{function}"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "under torch's DDP (2 ranks on 1 host, gloo, cpu)" in done.stdout + done.stderr
    assert "This is a defect" not in done.stderr


@pytest.mark.parametrize(
    ("rank", "says"), [("0", "there is no such folder"), ("1", "there is no module 'gone'")]
)
def test_the_page_is_checked_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, says: str
) -> None:
    """Another host need not have rank 0's folder."""
    monkeypatch.setenv("RANK", rank)
    page = tmp_path / "of_rank_0" / "page.html"
    assert says in refusal("gone:example", "-o", str(page)).message


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.py:broken",), "a training step fails"),
        (("train.py:lowered",), "a training step fails"),
        (("train.py:lowered", "--autocast", "bfloat16"), "the job has one rank"),
    ],
)
def test_a_step_that_fails_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**rank, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    failed = autosync(tmp_path, *DIAGNOSED, *words, code=2)
    assert says in " ".join(failed.stderr.split())
    assert "This is a defect" not in failed.stderr
