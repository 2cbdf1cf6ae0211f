"""Prints what neighbours and a local search cost: strategies a second, made and judged apart.

python -m benchmarks.search.edit_cost [--model bert_base] [--children 8192] [--threads 2]
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from autosync.domain import Domain
from autosync.population import Population
from autosync.search.edits.local_search import CHUNK, Predict, neighbours_of, searched_from
from autosync.search.edits.small_edits import make_edited, parents_of
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.search.ranking_cost import domain_of

PARENTS = 256
KEPT = 256


def report_stages(domain: Domain, strategies: Population, children: int, threads: int) -> None:
    """Makes children, then judges them, with the same threads."""
    parents = parents_of(domain, Space(), strategies)
    rng = np.random.default_rng(0)
    base, edits = rng.integers(len(parents), size=children), rng.integers(1, 4, size=children)

    def made(start: int) -> Population:
        part = slice(start, start + CHUNK)
        return make_edited(parents, base[part], edits[part], start, 0)

    with ThreadPoolExecutor(threads) as workers:
        began = time.perf_counter()
        populations = list(workers.map(made, range(0, children, CHUNK)))
        edited = time.perf_counter()
        list(workers.map(partial(TimelineSimulator().predict, domain), populations))
        judged = time.perf_counter()
    rows = sum(each.rows for each in populations)
    print(f"  {children} children of {rows / children:.0f} shards each, {threads} threads")
    print(f"  made: {children / (edited - began):.0f} a second")
    print(f"  judged by the timeline: {children / (judged - edited):.0f} a second")
    print(f"  both: {children / (judged - began):.0f} a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bert_base")
    parser.add_argument("--children", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    given = parser.parse_args()
    domain = domain_of(given.model, given.nodes, step_seconds=0.2)
    drawn = sample(domain, Space(), 0, PARENTS, 0)
    predict: Predict = partial(TimelineSimulator().predict, domain)
    best = drawn.take(np.argsort(predict(drawn))[:8])
    neighbours_of(domain, Space(), best, predict, 8, 0, 8)  # compiles, or loads
    print(f"{given.model}, {given.nodes} nodes; best drawn {predict(best)[0]:.4f} s")
    report_stages(domain, drawn, given.children, given.threads)
    options = given.children, 0, KEPT, given.threads
    for what, search in (("neighbours", neighbours_of), ("local search", searched_from)):
        began = time.perf_counter()
        _, seconds = search(domain, Space(), best, predict, *options)
        rate = given.children / (time.perf_counter() - began)
        print(f"  {what}: {rate:.0f} a second; best {seconds[0]:.4f} s")


if __name__ == "__main__":
    main()
