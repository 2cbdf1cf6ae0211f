"""Prints what learned simulators cost: learning from 150 trials, and ranking 30,000 proposals by
the timeline and then, with one of them, the best 3,000 and 500 random ones.

python -m benchmarks.learned [bert_base bert_large ...] [--simulators gaussian lstm gat]

The trials' seconds are made up (the timeline's, longer for every message): how well simulators
rank is for `benchmarks.evaluation` to say, here only their cost counts.
"""

import argparse
import resource
import time

import numpy as np

from autosync.domain import Domain
from autosync.search.loop.ranking import rank
from autosync.search.sampler.sampling import sample, sample_at
from autosync.search.space import Space
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, make_model
from autosync.simulator.learned.models.recipe import ModelKind, Recipe
from autosync.simulator.learned.training import pretrained
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, simulate
from benchmarks.measure import provenance
from benchmarks.search.ranking_cost import domain_of

TRIALS = 150
BEST, RANDOM = 3_000, 500
DRAWN = 512
"""Of these, proposals held at a time."""
KINDS: tuple[ModelKind, ...] = ("gaussian", "trees", "lstm", "gat", "ensemble")
SECONDS_A_MESSAGE = 5e-4


def fitted(domain: Domain, kind: ModelKind) -> LearnedSimulator:
    """A simulator that has learned from `TRIALS` random strategies; prints how long it took."""
    population = sample(domain, Space(), 0, TRIALS, seed=1)
    plans = compile_plans_fast(population, domain)
    messages = np.diff(plans.first)
    seconds = simulate(plans, population, domain) + SECONDS_A_MESSAGE * messages
    trials = LabelledTrials(domain, features_of(domain, population), seconds)
    began = time.perf_counter()
    simulator = pretrained(make_model(Recipe(kind), 0), [trials])
    print(
        f"  {kind:10s} learns from {TRIALS} trials in {time.perf_counter() - began:6.2f} s",
        flush=True,
    )
    return simulator


def report(model: str, kinds: list[ModelKind], proposals: int, nodes: int) -> None:
    domain = domain_of(model, nodes, step_seconds=0.2)
    rank(domain, Space(), TimelineSimulator(), 8, 0, 8)  # compiles, or loads what was compiled
    print(f"{model}, {nodes} nodes")
    for kind in kinds:
        simulator = fitted(domain, kind)
        began = time.perf_counter()
        coarse = rank(domain, Space(), TimelineSimulator(), proposals, 0, BEST)
        between = time.perf_counter()
        others = np.arange(proposals, proposals + RANDOM)
        chosen = np.concatenate((coarse.index, others)).astype(np.uint64)
        for start in range(0, len(chosen), DRAWN):
            population = sample_at(domain, Space(), chosen[start : start + DRAWN], seed=0)
            simulator.predict(domain, population)
        ended = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"  {kind:10s} ranks {proposals} proposals in {ended - began:6.2f} s: the timeline "
            f"{between - began:.2f} s, then {BEST + RANDOM} in {ended - between:.2f} s; "
            f"peak memory so far {peak:.2f} GB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["bert_base", "bert_large"])
    parser.add_argument("--simulators", nargs="+", choices=KINDS, default=list(KINDS[:4]))
    parser.add_argument("--proposals", type=int, default=30_000)
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in provenance().items()))
    for model in given.models:
        report(model, given.simulators, given.proposals, given.nodes)


if __name__ == "__main__":
    main()
