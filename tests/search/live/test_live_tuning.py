"""`autosync.tune` inside a real torchrun job of three ranks; see `live_script`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import autosync
from autosync.bundle import load_bundle
from autosync.documents import from_json
from autosync.errors import NotSupported
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import read_earlier
from autosync.trials.contract import TrialResult
from tests.search.live.torchrun import seen_by_ranks

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[3]
RANKS = 3
PARTS = ("refusals", "contract", "falling_back", "several", "streaming", "tuning")

Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def seen(out: Path) -> Seen:
    """What each rank saw, in one run of all parts."""
    return seen_by_ranks("live_script.py", RANKS, out, *PARTS)


def test_tuning_restores_every_bit_and_trains_on_as_ddp_would(seen: Seen, out: Path) -> None:
    for rank in seen:
        tuned = rank["tuning"]
        assert tuned["same_objects"]
        assert tuned["restored"]
        assert tuned["difference"] < 1e-5  # AdamW divides by small numbers: rounding grows
    assert len({rank["tuning"]["kind"] for rank in seen}) == 1
    events = seen[0]["tuning"]["events"]
    assert {"opening", "search", "done"} <= set(events)
    assert events.count("done") == 1
    assert events[-1] == "done"
    assert not seen[1]["tuning"]["events"]
    messages = seen[0]["tuning"]["messages"]
    assert "measuring what messages cost" in messages
    assert not any("assumed" in text for text in messages)
    slowed = [text for text in messages if "compute" in text]
    assert len(slowed) == 1  # told, or why it is not
    assert "while messages are under way" in slowed[0] or "is not known" in slowed[0]
    shipped = load_bundle(out / "best.json")
    assert shipped.hosts == ("first", "first", "second")
    assert shipped.evidence.measured_on == "job (3 ranks on 2 hosts)"
    engine = seen[0]["tuning"]["kind"] != "DistributedDataParallel"
    assert engine == (shipped.plan.engine == "autosync")


def test_a_second_tuning_measures_first_what_the_first_found(seen: Seen, out: Path) -> None:
    measured = read_earlier(out / "trials.json")
    assert isinstance(measured, EarlierTrials)
    assert len(measured.trials) == 6
    again = seen[0]["tuning"]["again"]
    assert len(again) == 5
    assert again[0].startswith("ddp: ")
    assert not seen[1]["tuning"]["again"]


def test_a_job_whose_every_trial_fails_goes_on_with_ddp(seen: Seen) -> None:
    for rank in seen:
        assert rank["falling_back"] == {
            "kind": "DistributedDataParallel",
            "restored": True,
            "clipped": True,
            "options": True,
            "warned": True,
        }


def test_one_rank_alone_cannot_go_on_without_the_others(seen: Seen) -> None:
    for number, rank in enumerate(seen):
        refusals = rank["refusals"]
        assert "does not call the model" in refusals["nothing"]
        assert ("rank 1 cannot tune" in refusals["nothing"]) == (number != 1)
        assert "2 backward passes" in refusals["twice"]


def test_a_tuning_leaves_no_process_group(seen: Seen) -> None:
    """The first one may start threads of torch's own; the second adds nothing."""
    for rank in seen:
        before, first, second = rank["refusals"]["held"]
        assert first["groups"] == second["groups"] == before["groups"]
        assert second["sockets"] <= first["sockets"]
        assert second["threads"] <= first["threads"]


def test_several_optimizers_and_parameters_that_steps_leave_out(seen: Seen) -> None:
    assert seen[0]["several"]["restored"] == [True]
    for rank in seen:
        found = rank["several"]
        assert "no gradient" in found["refused"]
        assert "find_unused_parameters" in found["refused"]
        assert found["failures"] == []
        assert found["same"]
        assert found["difference"] < 1e-5


def test_every_trial_runs_the_same_batches_of_a_stream(seen: Seen) -> None:
    """As many as the rank with the fewest has: 4. Recorded are all, after the first once more."""
    assert seen[0]["streaming"]["restored"] == [True]
    assert seen[0]["streaming"]["failures"] == []
    for number, rank in enumerate(seen):
        found = rank["streaming"]
        assert "batches is empty" in found["refused"]
        assert ("rank 2 cannot tune" in found["refused"]) == (number != 2)
        assert found["again"]
        assert found["recorded"]
        assert found["alike"]
        assert found["passes"] >= 3


def results(seen: Seen) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = seen[0]["contract"]["results"]
    return found


def test_faults_cost_their_own_trial(seen: Seen) -> None:
    """Every faulty trial is followed by a good one, the last included."""
    by_fault: dict[str, list[dict[str, Any]]] = {}
    for key, result in results(seen).items():
        by_fault.setdefault(key.split(":")[1] if ":" in key else key, []).append(result)
    assert [result["kind"] for result in by_fault[""]] == [""] * 5
    assert by_fault["slow"][0]["kind"] == "timeout"
    assert "all that they may" in by_fault["slow"][0]["message"]
    assert all(result["iterations"] >= 3 for result in by_fault[""])
    for raised in by_fault["raise"]:
        assert raised["kind"] == "crashed"
        assert raised["message"] == "rank 1: RuntimeError: raised on purpose"
    assert [result["kind"] for result in by_fault["hang"]] == ["timeout", "timeout"]
    assert "keeps a reference" in by_fault["keep"][0]["message"]
    assert by_fault["late"][0]["message"] == "rank 1: RuntimeError: raised at the end"
    assert "ended unequal" in by_fault["drift"][0]["message"]
    assert by_fault["other"][0]["kind"] == "refused"


def test_a_trial_tells_what_a_running_job_can_know(seen: Seen) -> None:
    sound = {key: r["result"] for key, r in results(seen).items() if "::" in key}
    for key, result in sound.items():
        told = from_json(TrialResult, json.dumps(result))
        assert {name for name, _ in told.versions} == {"torch", "autosync", "python"}
        assert told.load is not None
        assert 0 <= told.load <= 1
        assert told.peak_memory_bytes is not None
        assert told.peak_memory_bytes > 2**20
        assert told.sent_bytes == ()  # two hosts by name, on one kernel
        assert told.timeline is not None
        assert told.timeline.clock == "shared"
        assert len(told.timeline.ranks) == RANKS
        for rank in told.timeline.ranks:
            assert {"forward", "backward", "update"} <= set(rank.compute.phase)
            assert (rank.messages is None) == key.endswith("ddp")
            if rank.messages is not None:
                assert set(rank.messages.message) == set(range(len(rank.messages.message)))
                assert rank.messages.message


def test_a_given_strategy_trains_on_as_ddp_would(seen: Seen) -> None:
    assert all(rank["contract"]["difference"] < 1e-5 for rank in seen)


def test_the_recorded_domain(seen: Seen) -> None:
    found = seen[0]["contract"]
    assert found["variables"][0] == found["gradient_order"][-1] == "embedding.weight"  # tied
    assert sorted(found["variables"]) == sorted(found["gradient_order"])
    assert found["gradient_order"].index("layers.1.linear1.weight") < found["gradient_order"].index(
        "layers.0.linear1.weight"
    )
    assert found["batch_size"] == 4
    assert 0 < found["forward"] + found["backward"] <= found["step"]
    assert found["hosts"] == 2
    assert all(rate > 0 for rate in found["gbps"])
    assert found["intra_gbps"][0] > 0
    assert found["intra_gbps"][1] is None
    assert found["optimizer"] == ["adamw", 2]


def test_without_the_search_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "autosync.search.live.live_tuning", None)
    with pytest.raises(NotSupported, match="not installed"):
        autosync.tune  # noqa: B018
