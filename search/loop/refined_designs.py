"""Hand-designed candidates, and what a local search in the timeline makes of the best of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.edits.local_search import refined
from autosync.search.loop.message_equality import distinct_rows
from autosync.search.loop.outcome import DDP
from autosync.search.loop.tuning_store import Candidate
from autosync.search.space import Space
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.simulator_contract import Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

RACED, RACE_EVALUATIONS = 6, 256
"""The most promising designs, each improved a little: what improves most is not what began best."""
REFINED = 2
"""Of these, the fastest by the timeline are improved further; one trial each at the most. The
harder a search optimises a simulator, the more it finds of its errors, so these are candidates
beside the others."""


def with_refined(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    designs: list[Candidate],
    seed: int,
    tried: Sequence[Strategy] = (),
) -> list[Candidate]:
    """The designs in their order, DDP first, with refined ones where these are predicted to be.
    tried: not proposed again, which a refined one could be."""
    promising = [each for each in designs if each.origin != DDP][:RACED]
    raced = []
    for design in promising:
        strategy = refined(design.strategy, domain, space, seed, RACE_EVALUATIONS)
        if strategy is not design.strategy:
            raced.append(replace(strategy, name=f"{design.origin}_refined"))
    if not raced:
        return designs
    places = np.argsort(TimelineSimulator().predict(domain, encode(raced, domain)))[:REFINED]
    better = [refined(raced[place], domain, space, seed) for place in places]
    scores = simulator.predict(domain, encode(better, domain))
    found = [
        Candidate(strategy, float(score), simulator.name, strategy.name)
        for strategy, score in zip(better, scores, strict=True)
    ]
    joined = [*designs, *found]
    joined.sort(key=lambda each: (each.origin != DDP, each.predicted_seconds))
    known = digests_of_strategies(domain, tried)
    rows = distinct_rows(domain, encode([each.strategy for each in joined], domain), known)
    return [joined[row] for row in rows]
