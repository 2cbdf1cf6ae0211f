"""The curve of torch's DDP over the size of its buckets: which sizes to try next, and which lists
of sizes.

A ladder of sizes is tried first. Then come sizes between the best ones, by a Gaussian process of
the speed over the size (as fusion buffers are tuned), and lists of sizes that a local search finds
with the simulator, which begins at the best size.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.designs.bucket_sizes import (
    SizedDdp,
    all_sizes,
    ddp_of_sizes,
    ladder,
    neighbouring_lists,
)
from autosync.search.loop.fusion_tuning import (
    MOST_STDS,
    speed_improvement,
    speeds_over_sizes,
)
from autosync.search.loop.outcome import DDP, is_ddp
from autosync.search.loop.predicted_candidates import predicted_candidates
from autosync.search.loop.settings import Settings
from autosync.search.loop.tuning_store import Candidate, Store
from autosync.simulator.simulator_contract import Simulator
from autosync.strategy import Strategy
from autosync.torch_engine import DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES

BUCKET_SIZE, BUCKET_LIST = "bucket_size", "bucket_list"
"""Where a candidate comes from."""
ROUND_TRIALS = 4
"""After the ladder: half of them sizes, half of them lists, where there are both."""
SEARCH_STEPS = 6
"""Of the local search for lists. A step looks at all neighbours of the best list so far."""
ALIKE = 0.002
"""Share of predicted seconds that tells no lists apart."""
MOST_NEIGHBOURS = 96
"""Of these, a step looks at so many."""


def bucket_candidates(
    domain: Domain, simulator: Simulator, store: Store, settings: Settings, left: int
) -> list[Candidate]:
    """What to try next: DDP's own sizes and the ladder at first. Nothing where no size could be
    faster than what is measured and no list is new. left: trials, at most so many."""
    seconds = {trial.key: trial.step_seconds for trial in store.trials()}
    stored = store.proposals()
    tried = {each.candidate.strategy.id: seconds.get(each.key) for each in stored}
    predicted = partial(_candidates, domain, simulator)
    if not tried:
        return predicted(_first_rungs(domain, left), BUCKET_SIZE)
    slots = min(left, ROUND_TRIALS)
    best_seconds = min((value for value in tried.values() if value), default=None)
    lists = _new_lists(domain, simulator, tried, slots)
    sizes = next_sizes(domain, tried, slots - min(len(lists), slots // 2))
    chosen = [
        *predicted([each.strategy for each in sizes], BUCKET_SIZE),
        *predicted(lists, BUCKET_LIST),
    ][:slots]
    gains = [1 - each.predicted_seconds / best_seconds for each in chosen if best_seconds]
    ends = settings.least_gain > 0 and max(gains, default=0.0) < settings.least_gain
    return [] if ends else chosen


def _candidates(
    domain: Domain, simulator: Simulator, strategies: list[Strategy], origin: str
) -> list[Candidate]:
    named = [
        (DDP, replace(each, name=DDP)) if is_ddp(each) else (origin, each) for each in strategies
    ]
    return predicted_candidates(domain, simulator, named)


def _first_rungs(domain: Domain, most: int) -> list[Strategy]:
    """DDP's own sizes, then sizes of the ladder; where these are more than trials, such that are
    as far apart as they can be."""
    rungs = ladder(domain)
    own = [each.strategy for each in rungs if each.size_bytes == DDP_BUCKET_BYTES]
    others = [each.strategy for each in rungs if each.size_bytes != DDP_BUCKET_BYTES]
    kept = np.unique(np.linspace(0, len(others) - 1, min(len(others), most - 1)).round())
    return [*own, *(others[place] for place in kept.astype(int).tolist())]


def next_sizes(domain: Domain, tried: Mapping[str, float | None], most: int) -> list[SizedDdp]:
    """At most so many sizes that could be faster than all that was measured, the one with the
    largest expected improvement first.

    tried: seconds of strategies by their ids; None where a trial failed.
    """
    sizes, speeds, untried = [], [], []
    for member in all_sizes(domain):
        value = tried.get(member.strategy.id)
        if value:
            sizes.append(float(member.size_bytes))
            speeds.append(-np.log(value))
        elif member.strategy.id not in tried:
            untried.append(member)
    chosen: list[SizedDdp] = []
    fastest = -np.log(min((value for value in tried.values() if value), default=np.inf))
    while sizes and untried and len(chosen) < most:
        asked = np.array([member.size_bytes for member in untried], dtype=np.float64)
        measured = np.array(speeds)
        mean, std = speeds_over_sizes(np.array(sizes), measured, asked)
        pick = int(np.argmax(speed_improvement(mean, std, measured)))
        if mean[pick] + MOST_STDS * std[pick] <= fastest:
            break
        chosen.append(untried.pop(pick))
        sizes.append(float(asked[pick]))  # as if measured, so that the next one lies elsewhere
        speeds.append(float(mean[pick]))
    return chosen


def _new_lists(
    domain: Domain, simulator: Simulator, tried: Mapping[str, float | None], most: int
) -> list[Strategy]:
    """Lists of sizes that were not tried, the fastest by prediction first; none where this torch
    takes no lists."""
    from autosync.runtime.torch_engines import takes_bucket_lists  # loads torch

    measured = [each for each in all_sizes(domain) if tried.get(each.strategy.id)]
    if not measured or not takes_bucket_lists():
        return []
    best = min(measured, key=lambda each: tried[each.strategy.id] or np.inf)
    own = best.size_bytes == DDP_BUCKET_BYTES
    limits = (DDP_FIRST_BUCKET_BYTES, best.size_bytes) if own else (best.size_bytes,)
    found: dict[str, tuple[float, Strategy]] = {}
    begin: tuple[int, ...] = limits
    fastest = np.inf
    for _ in range(SEARCH_STEPS):
        neighbours = neighbouring_lists(domain, begin)
        if len(neighbours) > MOST_NEIGHBOURS:
            kept = np.linspace(0, len(neighbours) - 1, MOST_NEIGHBOURS).astype(int)
            neighbours = [neighbours[place] for place in kept.tolist()]
        if not neighbours:
            break
        strategies = [ddp_of_sizes(domain, each) for each in neighbours]
        scores = simulator.predict(domain, encode(strategies, domain))
        for strategy, score in zip(strategies, scores.tolist(), strict=True):
            found.setdefault(strategy.id, (score, strategy))
        place = int(np.argmin(scores))
        if scores[place] >= fastest:
            break
        begin, fastest = neighbours[place], float(scores[place])
    new = [each for key, each in found.items() if key not in tried]
    return [strategy for _, strategy in sorted(new, key=_promise)[:most]]


def _promise(predicted: tuple[float, Strategy]) -> tuple[int, int]:
    """Of predictions that are equal within `ALIKE`, the shorter list goes first."""
    seconds, strategy = predicted
    arguments = strategy.schedule.ddp
    sizes = len(arguments.bucket_limits_bytes) if arguments else 0
    return round(np.log(seconds) / ALIKE), sizes
