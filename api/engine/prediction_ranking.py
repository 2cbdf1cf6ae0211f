"""The best strategies by prediction alone: nothing runs."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from threadpoolctl import threadpool_limits

from autosync.cancellation import result_of, submit
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.loop.outcome import DDP, TuningEvent
from autosync.search.loop.tuning_store import Candidate
from autosync.search.space import Space
from autosync.simulator.simulator_contract import Simulator

SMALL_MODEL, SMALL_CLUSTER = "vgg16", "example-2x2"
SAMPLED = 64
"""Sampled strategies that are kept at most, chosen to be unlike each other."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A ranking computes in two threads: those that BLAS would start for each wait for a core in a
    loop (`benchmarks.search.cold_rank`, ResNet-50, two cores: 5.8 core-seconds with them, 4.2 under
    OPENBLAS_NUM_THREADS=1)."""
    import scipy.optimize  # noqa: F401  # what is not loaded yet cannot be limited

    with threadpool_limits(1, user_api="blas"):
        yield


def best_by_prediction(
    domain: Domain,
    predictor: Simulator,
    proposals: int,
    seed: int,
    on_event: Callable[[TuningEvent], None],
    space: Space = Space(),  # noqa: B008  # frozen
    stop: Callable[[], bool] = lambda: False,
) -> list[Candidate]:
    """Designed candidates, what extensions make of them, and unlike ones of the fastest
    sampled, fastest first; DDP is among them, as the last one where the devices' memory does not
    hold it.

    on_event: called with how far it is, by another thread; what it raises ends the ranking.
    stop: asked where extensions have more to look at; ends that alone.

    Raises:
        InvalidInput: no strategy fits the devices' memory; says what would make one fit.
    """
    from autosync.search.designs.design_table import check_any_fits
    from autosync.search.extension_proposals import ProposalRequest, extension_candidates
    from autosync.search.loop.design_candidates import known_designs
    from autosync.search.loop.ranking import ranking_context
    from autosync.search.loop.settings import Settings
    from autosync.search.loop.sources import ranked_draws, shortlist_of_draws
    from autosync.search.sampler.sampling import most_draws
    from autosync.simulator.memory.memory_check import fitting_rows

    def progress(done: int) -> None:
        on_event(TuningEvent("ranking", "ranking proposals", done, most_draws(space, proposals)))

    check_any_fits(domain, space, stop)
    if space.only == "buckets":  # nothing is drawn at random
        return sorted(
            known_designs(domain, space, predictor), key=lambda each: each.predicted_seconds
        )
    with one_blas_thread():
        settings = Settings(proposals=proposals, seed=seed, acquisition="prediction")
        threads = ThreadPoolExecutor(1)
        try:  # what draws and plays proposals needs no interpreter; what designs is nothing else
            ranking = submit(
                threads, ranked_draws, domain, space, predictor, proposals, seed, progress
            )
            known = known_designs(domain, space, predictor)
            bases = [each.strategy for each in known]
            request = ProposalRequest(domain, space, predictor, bases, settings, stop=stop)
            known += extension_candidates(request)
            ranked = result_of(ranking)
        finally:
            threads.shutdown(wait=False)
        context = ranking_context(
            domain,
            predictor,
            settings.acquisition,
            None,
            [candidate.strategy for candidate in known],
        )
        listed = shortlist_of_draws(context, space, ranked, seed)
        drawn = context.pick(listed, settings, 0, SAMPLED, "sampled")
        ddp = next(candidate.strategy for candidate in known if candidate.origin == DDP)
        ddp_fits = len(fitting_rows(domain, encode([ddp], domain))) > 0
        found = known + drawn
        seconds = np.array([each.predicted_seconds for each in found])
        last = np.array([each.origin == DDP and not ddp_fits for each in found])
        return [found[row] for row in np.lexsort((seconds, last))]


def load_kernels() -> None:
    """Rank a small model, so that later rankings find their kernels compiled and loaded. Where no
    cache has them yet this takes minutes."""
    from autosync.api.engine.registry import LEARNED, simulator_named
    from autosync.cluster.cluster_file import load_cluster
    from autosync.domain import usual_optimizer
    from autosync.models import bundled
    from autosync.profiling import estimate_profile
    from autosync.simulator.limit import iteration_limit

    graph, cluster = bundled(SMALL_MODEL, None), load_cluster(SMALL_CLUSTER)
    profile = estimate_profile(graph, cluster.fastest_device_type)
    domain = Domain(graph, cluster, profile, usual_optimizer(graph))
    best_by_prediction(domain, simulator_named(LEARNED), 16, 0, lambda event: None)
    iteration_limit(domain)
