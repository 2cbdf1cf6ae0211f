"""The tutorial's own script trains under DDP and, changed by its two lines, under its bundle.

Its two processes are started by hand, as the page says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autosync.api.cli.main import app
from tests.api.http.serving import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SHORT = "--repeats 1 --proposals 50 --launcher local --simulator timeline --no-probe --budget 2"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
@pytest.mark.timeout(1500)  # a tuning between two trainings, beside other load
def test_the_script_trains_alike_under_ddp_and_under_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, before, after = blocks("python")
    assert before in script
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "my-cluster.yaml").write_text(blocks("yaml")[0])
    under_ddp = loss_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tune = ["tune", "train:example", "my-cluster.yaml", "-o", "best.json", *SHORT.split()]
    done = CliRunner().invoke(app, tune)
    assert done.exit_code == 0, done.output
    changed = script.replace(before, after).replace(
        "import torch\n", "import autosync\nimport torch\n", 1
    )
    (tmp_path / "train.py").write_text(changed)
    assert loss_of(tmp_path, "best.json") == pytest.approx(under_ddp, abs=1e-3)


def loss_of(folder: Path, *arguments: str) -> float:
    """Rank 0's last loss. Each rank names a host of its own."""
    shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", *arguments],
            cwd=folder,
            env={**os.environ, **shared, "RANK": str(rank), "AUTOSYNC_HOST": f"host{rank}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [each.communicate(timeout=600) for each in ranks]
    for each, (_, errors) in zip(ranks, told, strict=True):
        assert each.returncode == 0, errors
        assert "does not fit" not in errors
    return float(re.findall(r"loss ([\d.]+),", told[0][0])[0])
