"""Prints what ranking 30,000 proposals costs: seconds by stage, and peak memory.

python -m benchmarks.search.ranking_cost
"""

import resource
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.search.loop.ranking import CHUNK
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.analytic import analytic_seconds
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import simulate
from benchmarks.output import option_parser

MODELS = ("bert_base", "bert_large")
NODES = 4
PROPOSALS = 30_000
THREADS = 2
STAGES = ("sample", "compile", "analytic", "timeline")


def domain_of(model: str) -> Domain:
    """Nodes of one V100 each on 25 Gbit Ethernet."""
    hosts = tuple(Node(f"10.0.0.{i + 1}", (Device("v100"),), 23.9) for i in range(NODES))
    graph = bundled(model)
    return Domain(graph, Cluster("benchmark", hosts), profile_from_step_seconds(graph, 0.2, "v100"))


def rank_chunk(domain: Domain, start: int, count: int) -> dict[str, float]:
    """Sample, compile and predict one chunk: each stage's seconds of one core, rows, messages, and
    the seconds an iteration of the best."""
    clock = time.thread_time
    began = clock()
    population = sample(domain, Space(), start, count, seed=0)
    sampled = clock()
    plans = compile_plans_fast(population, domain)
    compiled = clock()
    analytic = analytic_seconds(plans, population, domain)
    weighed = clock()
    timeline = simulate(plans, population, domain)
    played = clock()
    assert np.isfinite(analytic).all()
    assert np.isfinite(timeline).all()
    return {
        "sample": sampled - began,
        "compile": compiled - sampled,
        "analytic": weighed - compiled,
        "timeline": played - weighed,
        "rows": population.rows,
        "messages": plans.messages,
        "best_seconds": float(timeline.min()),
    }


def rank_all(domain: Domain, proposals: int) -> tuple[dict[str, float], float]:
    """What chunks on THREADS threads take together, and the seconds until all are done."""
    starts = range(0, proposals, CHUNK)
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        chunks = list(
            pool.map(lambda start: rank_chunk(domain, start, min(CHUNK, proposals - start)), starts)
        )
    wall = time.perf_counter() - began
    summed = (*STAGES, "rows", "messages")
    return {name: sum(chunk[name] for chunk in chunks) for name in summed}, wall


def report(model: str) -> None:
    domain = domain_of(model)
    rank_chunk(domain, 0, 8)  # compiles, or loads what was compiled before
    spent, wall = rank_all(domain, PROPOSALS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{model}, {NODES} nodes: {PROPOSALS} proposals, {spent['rows'] / 1e6:.1f} M rows, "
        f"{spent['messages'] / 1e6:.1f} M messages, {THREADS} threads"
    )
    for stage in STAGES:
        per = spent[stage] / spent["messages"] * 1e9
        print(f"  {stage:9s} {spent[stage]:6.2f} core-seconds, {per:6.1f} ns a message")
    print(
        f"  wall {wall:.2f} s (analytic alone about {wall - spent['timeline'] / THREADS:.2f} s), "
        f"peak memory {peak:.2f} GB"
    )


def main() -> None:
    option_parser(__doc__).parse_args()
    for model in MODELS:
        report(model)


if __name__ == "__main__":
    main()
