"""A cluster's costs, corrected by the first trials of a tuning.

A probe times a model made for it; trials time this model, and strategies whose kinds of messages
are mixed. What they say of the costs counts as far as they tell it: costs that no trial shows stay
as they were probed, others move by no more than their doubt and the trials' number allow.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autosync.cancellation import check_cancelled
from autosync.domain import Domain
from autosync.population import Population
from autosync.simulator.extension_prediction import restated_strategies
from autosync.simulator.fitting.cost_parameters import Doubt, cost_parameters, kinds_of_messages
from autosync.simulator.fitting.regularized_fit import fit_regularized
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import simulate

F64 = NDArray[np.float64]

FEWEST_TRIALS = 8
"""Below that many the costs stay as they are."""

MODEL_NOISE = 0.06
"""By how much a trial is off the timeline with the right costs, in log seconds: what the timeline
leaves out, and the noise of a trial."""

PROBED = Doubt(
    startup=0.3,
    host=0.4,
    least_seconds=3e-5,
    bytes_factor=0.4,
    overlap_slowdown=0.1,
    link_seconds_per_send=1e-5,
)
"""Of costs that a probe has fitted."""

MAX_ITERATIONS = 8


def recalibrated(domain: Domain, population: Population, step_seconds: F64) -> Domain:
    """The domain with the costs of its cluster under which the timeline agrees best with the
    trials, and with what was known before.

    population: the strategies of the trials; those that are predicted in a domain of their own
    (`restated_strategies`) count for nothing: what else travels there is not known well enough.
    step_seconds `(strategies,)`: measured; NaN where one failed. With fewer than
    `FEWEST_TRIALS` the domain is returned as it is.
    """
    sound = np.isfinite(step_seconds) & (step_seconds > 0)
    ran = np.flatnonzero(sound & ~restated_strategies(population))
    if len(ran) < FEWEST_TRIALS:
        return domain
    tried = population.take(ran)
    plans = compile_plans_fast(tried, domain)
    parameters = cost_parameters(domain.cluster, kinds_of_messages(plans), PROBED)

    def log_seconds(vector: F64) -> F64:
        check_cancelled()
        corrected = replace(domain, cluster=parameters.cluster_with(vector))
        result: F64 = np.log(simulate(plans, tried, corrected))
        return result

    low, high = parameters.bounds()
    vector = fit_regularized(
        log_seconds, np.log(step_seconds[ran]), MODEL_NOISE, low, high, MAX_ITERATIONS
    )
    return replace(domain, cluster=parameters.cluster_with(vector))
