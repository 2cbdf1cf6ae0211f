"""`autosync.tune` on two ranks whose devices have no room for torch's DDP: the answer is what fits;
see `memory_bound_script`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autosync.bundle import load_bundle
from autosync.search.loop.outcome import is_ddp

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[3]
RANKS = 2
CASES = ("deep",)

Seen = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory-bound")


@pytest.fixture(scope="module")
def seen(out: Path) -> Seen:
    """What each rank saw, of both models."""
    job = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS)),
            *("tests/search/live/memory_bound_script.py", str(out)),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert job.returncode == 0, job.stderr[-6000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_ddp_really_runs_out_of_memory_and_the_answer_does_not(
    seen: Seen, out: Path, case: str
) -> None:
    messages = seen[0][case]["messages"]
    assert "ddp: out_of_memory" in messages
    assert any(message.startswith("DDP ran out of memory; ") for message in messages)
    bundle = load_bundle(out / f"{case}.json")
    assert not is_ddp(bundle.strategy)
    assert bundle.evidence.ddp_step_seconds is None
    assert bundle.evidence.step_seconds is not None
    assert "predicted" not in bundle.evidence.measured_on


@pytest.mark.parametrize("case", CASES)
def test_the_job_goes_on_within_its_memory_to_the_bit(seen: Seen, case: str) -> None:
    """More than its memory is an error; `same`: as the same plan trains without any limit."""
    for rank in seen:
        assert rank[case]["restored"]
        assert rank[case]["same"]


def test_where_activations_are_too_much_the_answer_swaps_them(seen: Seen, out: Path) -> None:
    """Trials of the others failed; a swapped one was measured with its waits."""
    bundle = load_bundle(out / "deep.json")
    assert bundle.strategy.swap is not None
    assert bundle.strategy.swap.budget_bytes < seen[0]["deep"]["memory_bytes"]
    tried = [message for message in seen[0]["deep"]["messages"] if "_swapped: " in message]
    assert any(message.endswith(" ms") for message in tried)
