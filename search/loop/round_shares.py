"""How a round's trials are shared out among the sources of proposals.

Trials are shared out, not predictions, so that a source whose predictions are too good leaves the
others theirs. But a share must be earned: of what cannot be faster than the fastest measured, by
its prediction and one standard deviation, little is tried. In the contest half of all trials went
to random draws; on domains where searches from measured strategies lead, none was the fastest.
"""

from collections.abc import Sequence

import numpy as np

from autosync.search.loop.acquisition import OPTIMISM
from autosync.search.loop.settings import Settings
from autosync.search.loop.shortlists import Judge, Shortlist
from autosync.search.loop.tuning_store import Source
from autosync.simulator.fitting.iteration_costs import MODEL_NOISE
from autosync.simulator.simulator_contract import Learner

INSURED_SHARE = 0.125
"""Of the trials, what a source has of its share in any case: a simulator may err about all that it
knows little of."""


def round_shares(
    settings: Settings, room: int, parents: int, before: int = 0
) -> list[tuple[Source, int]]:
    """Trials of a round by their source, `room` in all; random draws have what others leave. A
    source that is asked for at all is there, if without a trial, since others may leave it theirs;
    what begins with measured strategies needs a parent.

    before: trials of such rounds so far. Shares are of all of them together, so that one of an
    eighth has its trial in every second round of four.
    """
    asked: tuple[tuple[Source, float], ...] = (
        ("refined", settings.refined_share if parents else 0.0),
        ("neighbour", settings.neighbour_share if parents else 0.0),
    )
    left = room
    counts: dict[Source, int] = {}
    for origin, share in asked:
        if share > 0:
            counts[origin] = min(quota(share, before, room), left)
            left -= counts[origin]
    counts["sampled"] = left
    order: tuple[Source, ...] = ("sampled", "refined", "neighbour")
    return [(origin, counts[origin]) for origin in order if origin in counts]


def quota(share: float, before: int, room: int) -> int:
    """How many of the next `room` trials a share has, after `before`: what it has of all, whole
    ones only, less what it had."""
    had, has = (int(share * trials + 1e-9) for trials in (before, before + room))
    return has - had


def earned_share(listed: Shortlist, judge: Judge, count: int, insured: int) -> int:
    """How many of its `count` trials a source earns: one for each proposal that could be faster
    than the fastest measured, one standard deviation below its prediction, `insured` of them in any
    case; all where nothing was measured."""
    if judge.best_seconds is None:
        return count
    std = listed.std if isinstance(judge.simulator, Learner) else MODEL_NOISE
    could = int((listed.seconds * np.exp(-OPTIMISM * std) < judge.best_seconds).sum())
    return min(count, max(could, insured))


def passed_on(shares: Sequence[tuple[Source, int]], spare: int) -> list[tuple[Source, int]]:
    """The shares with `spare` trials more, by their sizes; the first has what does not divide."""
    if not shares:
        return []
    total = sum(count for _, count in shares)
    more = [spare * count // total if total else 0 for _, count in shares]
    more[0] += spare - sum(more)
    return [(origin, count + add) for (origin, count), add in zip(shares, more, strict=True)]
