"""How truly a testbed emulates: time to build it, link error, timer lateness, repeatability.

python benchmarks/testbed_accuracy.py [--rounds 3]
"""

import argparse
import statistics
import time

from autosync.cluster import Cluster, Device, Node
from autosync.trials import namespaces
from autosync.trials.links import measured_links
from autosync.trials.replay import ComputeClock, sharpen_timer


def cluster_of(rates: tuple[float, ...]) -> Cluster:
    nodes = tuple(Node(f"node{i}", (Device("cpu"),), rate) for i, rate in enumerate(rates))
    return Cluster("accuracy", nodes)


def build_times(rounds: int) -> None:
    for count in (2, 4, 8):
        ups, downs = [], []
        for _ in range(rounds):
            begun = time.monotonic()
            testbed = namespaces.up(cluster_of((1.0,) * count))
            built = time.monotonic()
            namespaces.down(testbed)
            ups.append(built - begun)
            downs.append(time.monotonic() - built)
        print(
            f"{count} nodes: up {statistics.median(ups) * 1e3:.0f} ms, "
            f"down {statistics.median(downs) * 1e3:.0f} ms"
        )


def link_errors(rounds: int) -> None:
    cases = {
        "4 x 0.956 Gbit/s": ((0.956,) * 4, 1.0),
        "4 x 0.956 Gbit/s at s = 1/16": ((0.956,) * 4, 1 / 16),
        "2 x 0.956 + 2 x 0.478 Gbit/s at s = 1/4": ((0.956, 0.956, 0.478, 0.478), 0.25),
        "8 x 0.956 Gbit/s at s = 1/8": ((0.956,) * 8, 0.125),
    }
    for name, (rates, byte_scale) in cases.items():
        cluster = cluster_of(rates)
        errors = []
        for _ in range(rounds):
            testbed = namespaces.up(cluster, byte_scale)
            try:
                errors += [abs(link.error) for link in measured_links(testbed, cluster)]
            finally:
                namespaces.down(testbed)
        print(
            f"{name}: payload error median {statistics.median(errors):.2%}, worst {max(errors):.2%}"
        )


def timer_lateness() -> None:
    sharpen_timer()
    clock = ComputeClock()
    clock.start()
    begun = time.monotonic()
    lateness = []
    for step in range(1, 1001):
        clock.compute(1e-3)
        lateness.append(time.monotonic() - begun - step * 1e-3)
    late = sorted(lateness)
    print(
        f"1000 waits of 1 ms: late by {late[500] * 1e6:.0f} us (median), {late[900] * 1e6:.0f} us "
        f"(p90); after the last, {lateness[-1] * 1e6:.0f} us in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    build_times(given.rounds)
    link_errors(given.rounds)
    timer_lateness()


if __name__ == "__main__":
    main()
