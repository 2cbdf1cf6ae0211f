"""Designs as candidates: the most promising at once, others when trials favour them, and the best
of them refined by a local search in the timeline."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import encode
from autosync.search.designs.design_table import named_designs
from autosync.search.edits.local_search import refined
from autosync.search.loop.earlier_document import EarlierTrials
from autosync.search.loop.earlier_trials import designs_again
from autosync.search.loop.outcome import DDP
from autosync.search.loop.predicted_candidates import predicted_candidates
from autosync.search.loop.selection import distinct_rows
from autosync.search.loop.tuning_store import Candidate
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import MODEL_NOISE
from autosync.simulator.memory.memory_check import fitting_rows
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.simulator_contract import Learner, Simulator
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

F64 = NDArray[np.float64]

RACED, RACE_EVALUATIONS = 6, 256
"""The most promising designs, each improved a little: the best start need not give the best end."""
REFINED = 2
"""Of these, the fastest by the timeline are improved further; one trial each at the most. The
harder a search optimises a simulator, the more it finds of its errors, so these are candidates
beside the others."""
EARNING_STDS = 2.0
"""A design earns its trial where it could beat the fastest measured within so many standard
deviations; a simulator that states none is off by `MODEL_NOISE`."""


def known_designs(domain: Domain, space: Space, simulator: Simulator) -> list[Candidate]:
    """DDP, then the other hand-designed strategies that fit the devices' memory, some of them with
    something of an extension, the most promising first, of equal messages the first one."""
    named = list(named_designs(domain, space))
    population = encode([strategy for _, strategy in named], domain)
    scores = simulator.predict(domain, population)
    candidates = [
        Candidate(replace(strategy, name=name), float(score), simulator.name, name)
        for (name, strategy), score in zip(named, scores, strict=True)
    ]

    def place(row: int) -> tuple[bool, float, str]:
        known = candidates[row]
        return known.origin != DDP, known.predicted_seconds, known.origin

    order = sorted(range(len(candidates)), key=place)
    population = population.take(order)
    fitting = {*fitting_rows(domain, population).tolist(), 0}  # DDP is measured in any case
    rows = distinct_rows(domain, population)
    return [candidates[order[row]] for row in rows if int(row) in fitting]


def with_refined(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    designs: list[Candidate],
    seed: int,
    tried: Sequence[Strategy] = (),
) -> list[Candidate]:
    """The designs in their order, DDP first, with refined ones that fit the devices' memory where
    these are predicted to be. tried: not proposed again, which a refined one could be."""
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
    fitting = [better[row] for row in fitting_rows(domain, encode(better, domain)).tolist()]
    found = predicted_candidates(domain, simulator, [(each.name, each) for each in fitting])
    joined = [*designs, *found]
    joined.sort(key=lambda each: (each.origin != DDP, each.predicted_seconds))
    known = digests_of_strategies(domain, tried)
    rows = distinct_rows(domain, encode([each.strategy for each in joined], domain), known)
    return [joined[row] for row in rows]


def earned_designs(
    domain: Domain,
    space: Space,
    simulator: Simulator,
    tried: Sequence[Candidate],
    best_seconds: float | None,
    slots: int,
    earlier: EarlierTrials | None = None,
) -> list[Candidate]:
    """At most `slots` of the designs that nobody has tried and that could still be the fastest, the
    likeliest first; all may be where nothing was measured. tried: or chosen already. earlier: what
    an earlier tuning tried stands among them."""
    if slots <= 0:
        return []
    known = [candidate.strategy for candidate in tried]
    origins = {candidate.origin for candidate in tried}
    designs = [d for d in known_designs(domain, space, simulator) if d.origin not in origins]
    if earlier is not None:
        designs = designs_again(domain, simulator, earlier, designs, known)
    if not designs:
        return []
    population = encode([each.strategy for each in designs], domain)
    if isinstance(simulator, Learner):
        seconds, std = simulator.predict_with_std(domain, population)
    else:
        seconds, std = simulator.predict(domain, population), np.full(len(designs), MODEL_NOISE)
    new = set(distinct_rows(domain, population, digests_of_strategies(domain, known)).tolist())
    rows = likeliest(seconds, std, np.inf if best_seconds is None else best_seconds)
    return [designs[row] for row in rows.tolist() if row in new][:slots]


def likeliest(seconds: F64, std: F64, best_seconds: float) -> NDArray[np.int64]:
    """Those that could be faster than the fastest, the likeliest first. seconds, std `(n,)`:
    predicted, and the standard deviation of their logarithm."""
    bound = seconds * np.exp(-EARNING_STDS * std)
    rows: NDArray[np.int64] = np.argsort(bound, kind="stable")
    return rows[bound[rows] < best_seconds]
