"""One row for strategies that hardly differ; what cannot be ranked."""

from pathlib import Path
from typing import Any

from autosync.api.cli.commands.predictions.rank import grouped
from autosync.api.views.schemas import PredictedStrategy
from tests.api.cli.command import autosync, small_inputs


def ranked(*entries: tuple[str, float]) -> list[PredictedStrategy]:
    rows: list[dict[str, Any]] = [
        {
            "rank": rank,
            "words": words,
            "origin": "ddp" if "DDP" in words else "sampled",
            "predicted_seconds": seconds,
        }
        for rank, (words, seconds) in enumerate(entries, 1)
    ]
    return [PredictedStrategy.model_construct(**row) for row in rows]


def test_numbers_that_differ_become_ranges() -> None:
    groups = grouped(
        ranked(
            ("all-reduce in 12 groups of 8.5 MiB; as gradients get ready", 0.1000),
            ("reduce-scatter in 4 groups of 24 MiB", 0.1001),
            ("all-reduce in 9 groups of 11 MiB; as gradients get ready", 0.1005),
            ("torch's DDP with its own 4 buckets", 0.1006),
            ("all-reduce in 9 groups of 8.5 MiB; as gradients get ready", 0.1009),
        )
    )
    assert [group.words for group in groups] == [
        "all-reduce in 9 to 12 groups of 8.5 to 11 MiB; as gradients get ready",
        "reduce-scatter in 4 groups of 24 MiB",
        "torch's DDP with its own 4 buckets",
    ]
    assert [group.place for group in groups] == [1, 2, 4]
    assert groups[0].predicted_seconds == (0.1000, 0.1009)
    assert groups[2].made_by == "ddp"


def test_a_prediction_that_is_told_apart_has_a_row_of_its_own() -> None:
    """And those after it are compared with it, not with the first."""
    words = "all-reduce in {} groups"
    seconds = (0.100, 0.1005, 0.102, 0.1025, 0.12)
    groups = grouped(ranked(*((words.format(i), each) for i, each in enumerate(seconds))))
    assert [len(group.members) for group in groups] == [2, 2, 1]


def test_a_space_that_has_no_placement_is_refused_with_it(tmp_path: Path) -> None:
    refused = autosync(
        tmp_path, "rank", *small_inputs(tmp_path), "--space", "fsdp2", "--placement", code=2
    )
    assert "--space fsdp2 has no strategies of placed modules" in refused.stderr.replace("\n", " ")
