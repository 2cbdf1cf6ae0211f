"""Replays the search on the bundled measurements, one row a simulator; nothing is measured.

    python -m benchmarks.replay [--simulators random timeline gaussian trees ...] [--untransferred]
        [--domains "vgg16, example-4x1-40gbe" ...] [--trials 60] [--seeds 3] [--jobs 1]

A search tries strategies of one measured domain in the rounds of a tuning, refits after each round
and chooses by a tuning's own selection. Hand-designed strategies are left out. A seed leaves nine
tenths of the domain's strategies and says which of two measured passes each trial returns. The
answer is the best, by all its measurements, of the three that were fastest in their trials, as a
confirmation finds it. The table shows by how much it is slower than the fastest strategy that was
left; means over domains and seeds.

Simulators have learned from the domains of other models alone (`--untransferred`: from nothing).
`lstm`, `gat` and `ensemble` take minutes a domain.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from autosync.bundled_data import data_folder
from autosync.domain import Domain
from autosync.search.loop.confirm import FINALISTS
from autosync.search.loop.proposing import ROUND_TRIALS
from autosync.search.loop.ranking import promise_of
from autosync.search.loop.selection import message_shares, select
from autosync.search.loop.settings import Settings
from autosync.simulator.learned.features.strategy_features import features_of
from autosync.simulator.learned.learned_simulators import LearnedSimulator
from autosync.simulator.learned.models.learned_model import LabelledTrials, make_model
from autosync.simulator.learned.models.recipe import MemberKind, Recipe
from autosync.simulator.learned.training import pretrained
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from benchmarks.evaluation.evaluated_domain import merged_by_messages

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MEMBERS: dict[str, tuple[MemberKind, ...]] = {
    "random": (),
    "timeline": (),
    "gaussian": ("gaussian",),
    "trees": ("trees",),
    "lstm": ("lstm",),
    "gat": ("gat",),
    "ensemble": ("gaussian", "trees", "lstm", "gat"),
}
"""What can be replayed, and the members of the simulator that learns in it."""
SHARDS = {"lstm", "gat"}
"""Members that read features of every shard."""
LEAST_STRATEGIES = 220
"""Domains with fewer are learned from and not searched."""
SEED_SHARE = 0.9
COUNTS = (8, 12, 20, 40, 60)


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """n measured strategies of a domain; strategies of equal messages stand once.

    trials: with the best estimates of their seconds. passes f64[2, n]: two single measurements.
    sampled i64: the strategies that nobody designed. shares f64[n, features]: `message_shares`.
    """

    name: str
    domain: Domain
    trials: LabelledTrials
    passes: F64
    sampled: I64
    shares: F64


def pool_of(measured: MeasuredDomain, with_shards: bool) -> MeasuredPool:
    merged = merged_by_messages(measured)
    domain, first = merged.domain, merged.step_seconds
    second = first if merged.second_seconds is None else merged.second_seconds
    features = features_of(domain, merged.population, with_shards)
    return MeasuredPool(
        merged.name,
        domain,
        LabelledTrials(domain, features, merged.label_seconds),
        np.array([first, np.where(np.isnan(second), first, second)]),
        np.setdiff1d(np.arange(len(merged)), merged.designs),
        message_shares(domain, merged.population),
    )


def taught(
    name: str, transferred: bool, pool: MeasuredPool, pools: Sequence[MeasuredPool]
) -> LearnedSimulator | None:
    """The simulator that a search begins with; None where nothing learns."""
    members = MEMBERS[name]
    if not members:
        return None
    only = len(members) == 1
    recipe = Recipe(members[0]) if only else Recipe("ensemble", members=members)
    simulator = LearnedSimulator(make_model(recipe, 0))
    if not transferred:
        return simulator
    graph = pool.domain.graph.name
    others = [each.trials for each in pools if each.domain.graph.name != graph]
    return pretrained(simulator.model, others)


def replay(
    pool: MeasuredPool, name: str, simulator: LearnedSimulator | None, trials: int, seed: int
) -> F64:
    """By which share the answer after each trial is slower than the fastest that was left, f64[m];
    m is `trials`, or all that there are."""
    rng = np.random.default_rng(seed)
    left = np.sort(rng.permutation(pool.sampled)[: round(SEED_SHARE * len(pool.sampled))])
    passes = pool.passes[rng.integers(2, size=pool.passes.shape[1]), np.arange(len(pool.shares))]
    tried = np.empty(0, dtype=np.int64)
    while len(tried) < min(trials, len(left)):
        rest = np.setdiff1d(left, tried)
        count = min(ROUND_TRIALS, len(rest), trials - len(tried))
        picks = _next_trials(pool, name, simulator, rest, tried, passes[tried], count, rng)
        tried = np.concatenate((tried, picks))
    reachable = float(pool.trials.step_seconds[left].min())
    return answers(passes[tried], pool.trials.step_seconds[tried]) / reachable - 1.0


def answers(trial_seconds: F64, label_seconds: F64) -> F64:
    """What a tuning would answer after each trial, f64[m]. trial_seconds: as the trials returned
    them; label_seconds: the best estimates of the same strategies."""
    order = np.argsort(trial_seconds, kind="stable")
    found = []
    for count in range(1, len(order) + 1):
        finalists = order[order < count][:FINALISTS]
        found.append(label_seconds[finalists].min())
    return np.array(found)


def _next_trials(
    pool: MeasuredPool,
    name: str,
    simulator: LearnedSimulator | None,
    rest: I64,
    tried: I64,
    seconds: F64,
    count: int,
    rng: Generator,
) -> I64:
    if name == "random":
        return np.sort(rng.permutation(rest)[:count])
    features = pool.trials.features
    if simulator is None:
        promise = features.base_seconds[rest]
    else:
        learner = deepcopy(simulator)
        if len(tried):
            taken = features.take(tried)
            learner.refit_features(LabelledTrials(pool.domain, taken, seconds))
        predicted, std = learner.predict_features(pool.domain, features.take(rest))
        best = float(seconds.min()) if len(seconds) else None
        promise = promise_of(predicted, std, Settings().acquisition, best)
    chosen = select(promise, pool.shares[rest], count, Settings().alpha, pool.shares[tried])
    return rest[chosen]


def replay_domain(
    domain: str, names: Sequence[str], transferred: bool, trials: int, seeds: int
) -> dict[str, F64]:
    """By simulator, the means over seeds of what `replay` returns."""
    with_shards = any(SHARDS & set(MEMBERS[name]) for name in names)
    pools = [pool_of(each, with_shards) for each in load_dataset(data_folder("runtimes"))]
    pool = next(each for each in pools if each.name == domain)
    found = {}
    for name in names:
        simulator = taught(name, transferred, pool, pools)
        runs = [replay(pool, name, simulator, trials, seed) for seed in range(seeds)]
        found[name] = np.mean(runs, axis=0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [
        each.name
        for each in load_dataset(data_folder("runtimes"))
        if len(merged_by_messages(each)) >= LEAST_STRATEGIES
    ]
    quick = ["random", "timeline", "gaussian", "trees"]
    parser.add_argument("--simulators", nargs="+", choices=list(MEMBERS), default=quick)
    parser.add_argument("--untransferred", action="store_true", help="they have learned nothing")
    parser.add_argument("--domains", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes, a domain each")
    given = parser.parse_args()
    asked = (given.simulators, not given.untransferred, given.trials, given.seeds)
    found: dict[str, dict[str, F64]] = {}
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as workers:
        for domain, rows in zip(
            given.domains,
            workers.map(
                replay_domain, given.domains, *([each] * len(given.domains) for each in asked)
            ),
            strict=True,
        ):
            found[domain] = rows
            print(f"{domain}: done", flush=True)
    counts = [count for count in COUNTS if count <= given.trials]
    print(f"| simulator | {' | '.join(f'{n} trials' for n in counts)} | worst domain at the end |")
    print(f"|---{'|---' * len(counts)}|---|")
    for name in given.simulators:
        curves = [found[domain][name] for domain in given.domains]
        means = [np.mean([curve[min(n, len(curve)) - 1] for curve in curves]) for n in counts]
        worst = max(curve[-1] for curve in curves)
        print(f"| {name} | {' | '.join(f'{mean:.2%}' for mean in means)} | {worst:.2%} |")


if __name__ == "__main__":
    main()
