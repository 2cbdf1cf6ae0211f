"""Prints what drawing proposals costs: seconds of wall time, rows, and what is drawn.

python -m benchmarks.search.sampling_cost [--model bert_base] [--proposals 30000] [--threads 1 2]
"""

import argparse
import resource
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autosync.cluster import Cluster, Device, Node
from autosync.codes import Method
from autosync.domain import Domain
from autosync.models import bundled
from autosync.profiling import profile_from_step_seconds
from autosync.search.loop.ranking import CHUNK
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space


def domain_of(model: str, nodes: int, ranks: int) -> Domain:
    """Nodes of V100s on 25 Gbit Ethernet; sampling looks at no time, so the profile is made up."""
    hosts = tuple(
        Node(f"10.0.0.{i + 1}", (Device("v100", ranks),), 23.9, 100.0) for i in range(nodes)
    )
    graph = bundled(model)
    return Domain(graph, Cluster("benchmark", hosts), profile_from_step_seconds(graph, 0.2, "v100"))


def draw_chunk(domain: Domain, start: int, count: int) -> Counter[str]:
    drawn = sample(domain, Space(), start, count, seed=0)
    rows = np.bincount(drawn.method, minlength=len(Method))
    found = Counter({method.name.lower(): int(rows[method]) for method in Method})
    last = np.maximum.reduceat(drawn.group, drawn.first[:-1])
    found.update(rows=drawn.rows, groups=int((last + 1).sum()))
    return found


def report(domain: Domain, proposals: int, threads: int) -> None:
    starts = range(0, proposals, CHUNK)
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        chunks = pool.map(
            lambda at: sample(domain, Space(), at, min(CHUNK, proposals - at), 0).rows, starts
        )
        rows = sum(chunks)
    wall = time.perf_counter() - began
    print(f"  {threads} threads: {wall:.2f} s, {wall * threads / rows * 1e9:.0f} ns a row and core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="bert_base")
    parser.add_argument("--proposals", type=int, default=30_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_args()
    domain = domain_of(arguments.model, arguments.nodes, arguments.ranks)
    began = time.perf_counter()
    sample(domain, Space(), 0, 1, 0)
    print(f"the first sample, its kernels loaded or compiled: {time.perf_counter() - began:.2f} s")
    drawn = draw_chunk(domain, 0, CHUNK)
    print(
        f"{arguments.model}, {domain.world_size} ranks: {len(domain.graph.variables)} variables, "
        f"{drawn['rows'] / CHUNK:.0f} shards and {drawn['groups'] / CHUNK:.0f} groups a proposal; "
        + ", ".join(f"{drawn[m.name.lower()] / drawn['rows']:.0%} {m.name.lower()}" for m in Method)
    )
    print(f"{arguments.proposals} proposals in chunks of {CHUNK}:")
    for threads in arguments.threads:
        report(domain, arguments.proposals, threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
