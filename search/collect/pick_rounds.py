"""Picks: strategies that searches choose, round by round, as a tuning would.

In every round a third is chosen by the timeline, a third by a transferred simulator and a third at
random, one after another. The first two choose among the same proposals as a tuning does, the last
among all of these. Nothing is chosen whose messages equal those of a strategy that was measured or
chosen before.

The transferred simulator is a Gaussian process. It has learned from what was measured of the
plan's `pick_sources`, picks and the domain itself left out, and is refitted before each round to
the domain's picks so far; of its other strategies it knows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.domain import Domain
from autosync.population import Population, decode
from autosync.search.collect.collected_strategy import (
    PICK_ORIGINS,
    PICKED_AT_RANDOM,
    PICKED_BY_TIMELINE,
    PICKED_BY_TRANSFERRED,
    CollectedStrategy,
)
from autosync.search.loop.acquisition import OPTIMISM
from autosync.search.loop.message_equality import distinct_rows, message_shares
from autosync.search.loop.ranking import materialize, rank
from autosync.search.loop.selection import select
from autosync.search.loop.settings import Settings
from autosync.search.loop.shortlists import COARSE_SIZE, SHORTLIST_SIZE
from autosync.search.sampler.sampling import sample_at
from autosync.search.space import Space
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.gaussian_process import GaussianModel
from autosync.simulator.learned.models.learned_model import LabelledTrials
from autosync.simulator.learned.training import transferred
from autosync.simulator.message_digests import digests_of_strategies
from autosync.simulator.runtime_dataset import MeasuredDomain
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy

F64 = NDArray[np.float64]

RANDOM_DRAWS = 16
"""Looked at for each pick at random: some of them were measured before."""


@dataclass(frozen=True, slots=True)
class PickRound:
    """number: from 1. picks: of the round. proposals: drawn for it. seed: of the collection."""

    number: int
    picks: int
    proposals: int
    seed: int


def trained_elsewhere(sources: Sequence[MeasuredDomain], domain: Domain) -> LearnedSimulator:
    """The transferred simulator, without a trial of the domain."""
    known = [
        LabelledTrials(
            each.domain, features_of(each.domain, each.population, False), each.label_seconds
        )
        for each in sources
    ]
    return transferred(GaussianModel(), known, domain)


def choose_round(
    domain: Domain,
    transferred_simulator: LearnedSimulator,
    earlier: Sequence[Strategy],
    asked: PickRound,
) -> list[CollectedStrategy]:
    """The picks of a round. earlier: every strategy that was measured or chosen before.

    Fewer than asked for, where the proposals hold no more that differ from these.
    """
    seed, each = asked.seed + asked.number, asked.picks // len(PICK_ORIGINS)
    timeline = TimelineSimulator()
    coarse = rank(domain, Space(), timeline, asked.proposals, seed, COARSE_SIZE)
    proposals = materialize(coarse, domain, Space())
    known = digests_of_strategies(domain, earlier)

    fresh = distinct_rows(domain, proposals, known)[:SHORTLIST_SIZE]
    listed, seconds = proposals.take(fresh), coarse.seconds[fresh]
    chosen = _selected(PICKED_BY_TIMELINE, domain, listed, seconds, seconds, each, asked)
    known |= digests_of_strategies(domain, [one.strategy for one in chosen])

    fresh = distinct_rows(domain, proposals, known)
    listed = proposals.take(fresh)
    seconds, std = transferred_simulator.predict_with_std(domain, listed)
    promise = seconds * np.exp(-OPTIMISM * std)
    best = np.argsort(promise, kind="stable")[:SHORTLIST_SIZE]
    chosen += _selected(
        PICKED_BY_TRANSFERRED,
        domain,
        listed.take(best),
        seconds[best],
        promise[best],
        each,
        asked,
    )
    known |= digests_of_strategies(domain, [one.strategy for one in chosen])

    count = min(asked.proposals, RANDOM_DRAWS * each)
    drawn = np.random.default_rng([seed]).choice(asked.proposals, count, replace=False)
    population = sample_at(domain, Space(), drawn.astype(np.uint64), seed)
    rows = distinct_rows(domain, population, known)[:each]
    guesses = timeline.predict(domain, population)
    return chosen + [
        CollectedStrategy(
            PICKED_AT_RANDOM,
            decode(population, int(row), domain),
            asked.number,
            float(guesses[row]),
        )
        for row in rows
    ]


def _selected(
    origin: str,
    domain: Domain,
    listed: Population,
    seconds: F64,
    promise: F64,
    count: int,
    asked: PickRound,
) -> list[CollectedStrategy]:
    shares = message_shares(domain, listed)
    picks = select(promise, shares, min(count, len(listed)), Settings().alpha)
    return [
        CollectedStrategy(
            origin, decode(listed, int(pick), domain), asked.number, float(seconds[pick])
        )
        for pick in picks
    ]
