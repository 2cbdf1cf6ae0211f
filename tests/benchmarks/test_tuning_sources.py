"""What is read of a tuning's file: rounds, the fastest before each, and mixed strategies."""

from pathlib import Path

import pytest

from autosync.documents import to_json
from autosync.population import decode
from autosync.search.designs.known_designs import all_reduce_25mb, dear
from autosync.search.loop.tuning_store import Candidate, Origin, Proposal
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.strategy import Strategy
from autosync.trials.contract import TrialResult
from benchmarks.contest.tuning_sources import is_mixed, trials_of
from tests.search.loop.test_tuning_loop import DOMAIN


def line(strategy: Strategy, origin: str, number: int, phase: str, seconds: float | None) -> str:
    key = f"{phase}/{number}/{strategy.id}"
    candidate = Candidate(strategy, 1.0, "timeline", origin)
    proposal = Proposal(key, "confirm" if phase == "confirm" else "search", number, candidate)
    iterations = () if seconds is None else (seconds,)
    result = TrialResult(key, iterations, seconds, 0.0, None, "scripted", 1.0, 1.0)
    return f"proposal {to_json(proposal)}\ntrial {to_json(result)}\n"


def test_trials_are_beside_the_fastest_before_their_round(tmp_path: Path) -> None:
    drawn = sample(DOMAIN, Space(), 0, 4, 7)
    strategies = [decode(drawn, index, DOMAIN) for index in range(4)]
    sampled: Origin = "sampled"
    file = tmp_path / "small.autosync_12.jsonl"
    file.write_text(
        line(all_reduce_25mb(DOMAIN), "ddp", 0, "search", 2.0)
        + line(strategies[0], sampled, 1, "search", 1.0)
        + line(strategies[1], "refined", 1, "search", 3.0)
        + line(strategies[2], sampled, 1, "search", None)
        + line(dear(DOMAIN), "dear", 2, "search", 0.5)
        + line(strategies[3], sampled, 0, "confirm", 0.1)
    )
    found = [(t.domain, t.source, t.over_best, t.over_predicted) for t in trials_of(file)]
    assert found == [
        ("small", "sampled", 0.5, 1.0),
        ("small", "refined", 1.5, 3.0),
        ("small", "designs", 0.5, 0.5),
    ]


def test_a_mixed_strategy_has_servers_and_all_reduces() -> None:
    assert not is_mixed(all_reduce_25mb(DOMAIN))
    drawn = sample(DOMAIN, Space(), 0, 64, 7)
    mixed = [is_mixed(decode(drawn, index, DOMAIN)) for index in range(64)]
    assert 0 < sum(mixed) < 64


def test_without_tunings_it_says_how_to_play_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.contest import tuning_sources

    monkeypatch.setattr("sys.argv", ["tuning_sources", "-o", str(tmp_path)])
    with pytest.raises(SystemExit, match="live_contest plays them"):
        tuning_sources.main()
