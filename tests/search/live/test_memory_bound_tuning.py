"""`autosync.tune` on two ranks whose devices have no room for torch's DDP: the answer swaps; see
`memory_bound_script`."""

from pathlib import Path
from typing import Any

import pytest

from autosync.bundle import load_bundle
from autosync.extensions.offload.document import Offload
from tests.search.live.torchrun import seen_by_ranks

pytestmark = pytest.mark.timeout(900)

Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory-bound")


@pytest.fixture(scope="module")
def seen(out: Path) -> Seen:
    """What each rank saw."""
    return seen_by_ranks("memory_bound_script.py", 2, out)


def test_ddp_really_runs_out_of_memory(seen: Seen, out: Path) -> None:
    messages = seen[0]["messages"]
    assert "ddp: out_of_memory" in messages
    assert any(message.startswith("DDP ran out of memory; ") for message in messages)
    assert load_bundle(out / "best.json").evidence.ddp_step_seconds is None


def test_the_answer_swaps_and_was_measured_with_its_waits(seen: Seen, out: Path) -> None:
    """Trials of the others failed."""
    bundle = load_bundle(out / "best.json")
    swap = bundle.strategy.extension(Offload)
    assert swap is not None
    assert swap.budget_bytes < seen[0]["memory_bytes"]
    assert bundle.evidence.step_seconds is not None
    assert "predicted" not in bundle.evidence.measured_on
    tried = [message for message in seen[0]["messages"] if "_swapped: " in message]
    assert any(message.endswith(" ms") for message in tried)


def test_the_job_goes_on_within_its_memory_to_the_bit(seen: Seen) -> None:
    """More than its memory is an error; `same`: as the same plan trains without any limit."""
    for rank in seen:
        assert rank["restored"]
        assert rank["same"]
