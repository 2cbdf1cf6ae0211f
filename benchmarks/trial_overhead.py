"""What a trial costs beyond its iterations: cold start of a pool, warm trials, strategies an hour.

python -m benchmarks.trial_overhead [--launcher local|testbed] [--ranks 4] [--trials 20]
"""

import argparse
import statistics
import time
from collections.abc import Callable

from autosync.bundle import Bundle, make_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain, Profile
from autosync.graph import ModelGraph, Operation, Variable
from autosync.strategy import (
    AllReduce,
    ReduceScatter,
    Schedule,
    Strategy,
    Synchronizer,
    VariableChoice,
    even_replicas,
    whole,
)
from autosync.trials.contract import TrialRequest, Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.measurement import LOAD_LIMIT

VARIABLES = 60
ELEMENTS = 200_000
OPERATION_SECONDS = 1e-3


def made_up_domain(ranks: int, length: int = VARIABLES) -> Domain:
    """A chain of `length` operations; the usual 60 have 48 MB of gradients, 180 ms of compute."""
    operations = tuple(
        Operation(f"op{i}", "linear", 1, 2, 4, True, (i - 1,) if i else (), (i,))
        for i in range(length)
    )
    variables = tuple(Variable(f"v{i}", (ELEMENTS,)) for i in range(length))
    back = tuple(reversed(range(length)))
    graph = ModelGraph("chain", 1, operations, variables, back, back, tuple(range(length)))
    nodes = tuple(Node(f"node{i}", (Device("cpu"),), 2.0) for i in range(ranks))
    once, twice = (OPERATION_SECONDS,) * length, (2 * OPERATION_SECONDS,) * length
    profile = Profile("cpu", 1, once, twice, 0.0, "estimated", "made up")
    return Domain(graph, Cluster("made-up", nodes), profile)


def bundles(domain: Domain) -> dict[str, Bundle]:
    world = domain.world_size
    kinds: dict[str, tuple[Callable[[int], Synchronizer], Schedule]] = {
        "DDP": (lambda i: AllReduce(i // 8), Schedule("ddp", 25 * 2**20)),
        "all-reduce, 8 a group": (lambda i: AllReduce(i // 8), Schedule()),
        "reduce-scatter, overlapped": (
            lambda i: ReduceScatter(i // 8),
            Schedule("priority", overlap_forward=True),
        ),
    }
    return {
        name: make_bundle(
            Strategy(
                tuple(
                    VariableChoice(v.name, whole(v.shape), (of(i),))
                    for i, v in enumerate(domain.graph.variables)
                ),
                even_replicas(world),
                schedule,
            ),
            domain,
        )
        for name, (of, schedule) in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--launcher", choices=("local", "testbed"), default="testbed")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    launcher = LocalLauncher() if given.launcher == "local" else TestbedLauncher()
    domain = made_up_domain(given.ranks)
    begun = time.monotonic()
    with launcher.open(Workload(domain, byte_scale=1 / 16)) as pool:
        opened = time.monotonic()
        pool.warm_up()
        cold = time.monotonic()
        print(f"{pool.description}, {given.ranks} ranks")
        print(
            f"opening (links measured): {opened - begun:.2f} s; cold workers: {cold - opened:.2f} s"
        )
        wall = time.monotonic()
        for name, shipped in bundles(domain).items():
            before = pool.repeated
            results = [pool.run(TrialRequest(f"{name} {i}", shipped)) for i in range(given.trials)]
            failed = [result.error for result in results if result.error is not None]
            good = [result for result in results if result.error is None]
            if failed or not good:
                print(f"{name}: {len(failed)} failed, e.g. {failed[0].kind}: {failed[0].message}")
                continue
            overhead = statistics.median(result.overhead_seconds for result in good)
            step = statistics.median(result.step_seconds or 0 for result in good)
            spread = statistics.median(result.spread or 0 for result in good)
            loaded = sum((result.load or 0) > LOAD_LIMIT for result in good) / len(good)
            again = (pool.repeated - before) / len(results)
            print(
                f"{name}: {overhead * 1e3:.1f} ms overhead a warm trial, iteration "
                f"{step * 1e3:.1f} ms, spread {spread:.1%}, repeated for load or spread "
                f"{again:.0%}, still loaded {loaded:.0%}"
            )
        passes_hourly = len(bundles(domain)) * given.trials / (time.monotonic() - wall) * 3600
        print(f"{passes_hourly / 2:.0f} strategies an hour, each in two passes of 2 + 5 iterations")


if __name__ == "__main__":
    main()
