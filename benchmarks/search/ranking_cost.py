"""Prints what ranking 30,000 proposals costs: seconds by stage, and peak memory; then strategies a
second of neighbours and of a local search.

python -m benchmarks.search.ranking_cost [bert_base bert_large ...] [--proposals 30000]
    [--threads 2]
"""

import resource
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.search.edits.local_search import neighbours_of, searched_from
from autosync.search.loop.ranking import CHUNK
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.analytic import analytic_seconds
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator, simulate
from benchmarks.output import option_parser

CHILDREN = 8192
KEPT = 256


def domain_of(model: str, nodes: int, step_seconds: float) -> Domain:
    """Nodes of one V100 each on 25 Gbit Ethernet."""
    hosts = tuple(Node(f"10.0.0.{i + 1}", (Device("v100"),), 23.9) for i in range(nodes))
    graph = bundled(model)
    return Domain(
        graph, Cluster("benchmark", hosts), profile_from_step_seconds(graph, step_seconds, "v100")
    )


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


def report(model: str, proposals: int, threads: int, nodes: int) -> None:
    domain = domain_of(model, nodes, step_seconds=0.2)
    rank_chunk(domain, 0, 8)  # compiles, or loads what was compiled before
    starts = range(0, proposals, CHUNK)
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        chunks = list(
            pool.map(lambda start: rank_chunk(domain, start, min(CHUNK, proposals - start)), starts)
        )
    wall = time.perf_counter() - began
    spent = {name: sum(chunk[name] for chunk in chunks) for name in chunks[0]}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{model}, {nodes} nodes: {proposals} proposals, {spent['rows'] / 1e6:.1f} M rows, "
        f"{spent['messages'] / 1e6:.1f} M messages, {threads} threads"
    )
    for stage in ("sample", "compile", "analytic", "timeline"):
        per = spent[stage] / spent["messages"] * 1e9
        print(f"  {stage:9s} {spent[stage]:6.2f} core-seconds, {per:6.1f} ns a message")
    print(
        f"  wall {wall:.2f} s (analytic alone about {wall - spent['timeline'] / threads:.2f} s), "
        f"peak memory {peak:.2f} GB"
    )
    report_edits(domain, threads)


def report_edits(domain: Domain, threads: int) -> None:
    predict = partial(TimelineSimulator().predict, domain)
    drawn = sample(domain, Space(), 0, CHUNK, seed=0)
    best = drawn.take(np.argsort(predict(drawn))[:8])
    for name, search in (("neighbours", neighbours_of), ("local search", searched_from)):
        search(domain, Space(), best, predict, 8, 0, 8)  # compiles, or loads
        began = time.perf_counter()
        search(domain, Space(), best, predict, CHILDREN, 0, KEPT, threads)
        print(f"  {name}: {CHILDREN / (time.perf_counter() - began):.0f} strategies a second")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("models", nargs="*", default=["bert_base", "bert_large"])
    parser.add_argument("--proposals", type=int, default=30_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    arguments = parser.parse_args()
    for model in arguments.models:
        report(model, arguments.proposals, arguments.threads, arguments.nodes)


if __name__ == "__main__":
    main()
