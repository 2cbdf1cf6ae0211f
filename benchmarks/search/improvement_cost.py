"""Prints what neighbours and a genetic search cost: strategies a second, made and judged apart.

python -m benchmarks.search.improvement_cost [--model bert_base] [--children 8192] [--threads 2]
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.improvement.crossover_mutation import Lineage
from autosync.search.improvement.genetic_algorithm import SURVIVORS, drawn_lineage, evolve
from autosync.search.improvement.neighbourhood import neighbours_of
from autosync.search.improvement.offspring import CHUNK, Predict, make_offspring
from autosync.search.improvement.parent_columns import pool_of
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.search.ranking_cost import domain_of


def report_stages(domain: Domain, parents: Population, children: int, threads: int) -> None:
    """Makes children, then judges them, with the same threads."""
    pool = pool_of(domain, Space(), parents, len(parents), 1)
    lineage = drawn_lineage(pool, children, np.random.default_rng(0))
    starts = range(0, children, CHUNK)

    def made(start: int) -> Population:
        part = Lineage(*(column[start : start + CHUNK] for column in lineage))
        return make_offspring(pool, part, start, 0)

    with ThreadPoolExecutor(threads) as workers:
        began = time.perf_counter()
        populations = list(workers.map(made, starts))
        bred = time.perf_counter()
        list(workers.map(lambda each: TimelineSimulator().predict(domain, each), populations))
        judged = time.perf_counter()
    rows = sum(each.rows for each in populations)
    print(f"  {children} children of {rows / children:.0f} shards each, {threads} threads")
    print(f"  made: {children / (bred - began):.0f} a second")
    print(f"  judged by the timeline: {children / (judged - bred):.0f} a second")
    print(f"  both: {children / (judged - began):.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bert_base")
    parser.add_argument("--children", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    domain = domain_of(given.model, given.nodes, step_seconds=0.2)
    parents = sample(domain, Space(), 0, SURVIVORS, 0)
    predict: Predict = partial(TimelineSimulator().predict, domain)
    evolve(domain, Space(), parents.take(np.arange(8)), predict, 8, 0)  # compiles, or loads
    print(f"{given.model}, {given.nodes} nodes")
    report_stages(domain, parents, given.children, given.threads)
    began = time.perf_counter()
    _, seconds = evolve(domain, Space(), parents, predict, given.children, 0, given.threads)
    rate = given.children / (time.perf_counter() - began)
    start = predict(parents).min()
    print(f"  genetic search: {rate:.0f} a second; best {seconds[0]:.4f} s from {start:.4f} s")
    began = time.perf_counter()
    best = parents.take(np.argsort(predict(parents))[:8])
    _, seconds = neighbours_of(
        domain, Space(), best, predict, given.children, 0, SURVIVORS, given.threads
    )
    rate = given.children / (time.perf_counter() - began)
    print(f"  neighbours: {rate:.0f} a second; best {seconds[0]:.4f} s")


if __name__ == "__main__":
    main()
