"""What computes for long looks at the token, and leaves at once."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from autosync.cancellation import CancellationToken, Cancelled, cancelled_by
from autosync.population import Population
from autosync.search.designs.known_designs import dear_fused
from autosync.search.edits.local_search import neighbours_of, refined, searched_from
from autosync.search.loop.ranking import rank
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.fitting.iteration_costs import fit_costs, recalibrated
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.gaussian_process import source_trials
from autosync.simulator.learned.kernel_training import learned_kernel
from autosync.simulator.learned.learned_simulator import LearnedSimulator
from autosync.simulator.message_digests import digests_of
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from tests.domains import domain_of
from tests.search.edits.strategies import parents_among

DOMAIN, SPACE = domain_of(), Space()
TRIED = sample(DOMAIN, SPACE, 0, 48, 0)
SECONDS = TimelineSimulator().predict(DOMAIN, TRIED) * np.linspace(0.9, 1.2, len(TRIED))
MEASURED = parents_among(DOMAIN, TRIED)
SOURCE = source_trials(features_of(DOMAIN, TRIED), SECONDS)


def predict(population: Population) -> NDArray[np.float64]:
    return TimelineSimulator().predict(DOMAIN, population)


WORK: dict[str, Callable[[], object]] = {
    "a ranking": lambda: rank(DOMAIN, SPACE, TimelineSimulator(), 10**9, 0, 8),
    "a local search": lambda: searched_from(DOMAIN, SPACE, MEASURED, predict, 10**9, 0, 8),
    "neighbours": lambda: neighbours_of(DOMAIN, SPACE, MEASURED, predict, 2048, 0, 8),
    "a refinement": lambda: refined(dear_fused(DOMAIN, 2**20), DOMAIN, SPACE, 0, 10**9),
    "digests": lambda: digests_of(DOMAIN, TRIED),
    "a fit of costs": lambda: fit_costs(DOMAIN, TRIED, SECONDS),
    "a correction of costs": lambda: recalibrated(DOMAIN, TRIED, SECONDS),
    "learned predictions": lambda: LearnedSimulator().predict(DOMAIN, TRIED),
    "a kernel's training": lambda: learned_kernel([SOURCE] * 3, "abc"),
}


@pytest.mark.parametrize("name", WORK)
def test_it_leaves_when_it_is_cancelled(name: str) -> None:
    token = CancellationToken()
    token.cancel("by hand")
    with pytest.raises(Cancelled), cancelled_by(token):
        WORK[name]()
