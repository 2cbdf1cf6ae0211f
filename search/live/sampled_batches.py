"""The batches of a job's stream of data that its trials run on."""

import itertools
from collections.abc import Iterable
from typing import Any

from autosync.errors import InvalidInput
from autosync.trials.live.control_group import ControlGroup

MOST_BATCHES = 16
"""Of a stream of data that a tuning keeps: more than the iterations of a trial by default."""


def sampled_batches(control: ControlGroup, batches: Iterable[Any] | None) -> list[Any]:
    """As many on every rank: a trial's iterations belong together. None where none were given."""

    def draw() -> list[Any]:
        drawn = [] if batches is None else list(itertools.islice(batches, MOST_BATCHES))
        if batches is not None and not drawn:
            raise _no_batches("batches is empty.", batches)
        return drawn

    drawn: list[Any] = control.agreed(draw)
    counts = control.gathered(len(drawn))
    if max(counts) and not min(counts):
        raise _no_batches(f"rank {counts.index(0)} was given no batches, others were.", batches)
    return drawn[: min(counts)]


def _no_batches(why: str, batches: object) -> InvalidInput:
    return InvalidInput(
        why,
        thing="batches",
        value=type(batches).__name__,
        remedy="Give every rank a DataLoader or an iterator with a batch at least, or none and a "
        "step that has its own.",
    )
