"""How truly a testbed emulates: time to build it, link error, timer lateness, repeatability.

python -m benchmarks.testbed_accuracy
"""

import statistics
import time

from autosync.cluster import Cluster, Device, Node
from autosync.trials.testbed import namespaces
from autosync.trials.testbed.self_check import check_testbed
from autosync.trials.worker.replay_compute import Stretch, WaitedCompute, reduce_timer_slack
from benchmarks.output import option_parser

ROUNDS = 3


def cluster_of(rates: tuple[float, ...]) -> Cluster:
    nodes = tuple(Node(f"node{i}", (Device("cpu"),), rate) for i, rate in enumerate(rates))
    return Cluster("accuracy", nodes)


def build_times() -> None:
    for count in (2, 4, 8):
        ups, downs = [], []
        for _ in range(ROUNDS):
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


def link_errors() -> None:
    cases = {
        "4 x 0.956 Gbit/s": ((0.956,) * 4, 1.0),
        "4 x 0.956 Gbit/s at s = 1/16": ((0.956,) * 4, 1 / 16),
        "2 x 0.956 + 2 x 0.478 Gbit/s at s = 1/4": ((0.956, 0.956, 0.478, 0.478), 0.25),
        "8 x 0.956 Gbit/s at s = 1/8": ((0.956,) * 8, 0.125),
    }
    for name, (rates, byte_scale) in cases.items():
        cluster = cluster_of(rates)
        links, rings, seconds = [], [], []
        for _ in range(ROUNDS):
            testbed = namespaces.up(cluster, byte_scale)
            try:
                begun = time.monotonic()
                checked = check_testbed(testbed, cluster)
                seconds.append(time.monotonic() - begun)
            finally:
                namespaces.down(testbed)
            links += [abs(link.error) for link in checked.links]
            rings += [abs(one.error) for one in checked.all_reduces]
        print(
            f"{name}: error of payload rates median {statistics.median(links):.2%}, worst "
            f"{max(links):.2%}; of all-reduces median {statistics.median(rings):.2%}, worst "
            f"{max(rings):.2%}; checked in {statistics.median(seconds):.2f} s"
        )


def timer_lateness() -> None:
    reduce_timer_slack()
    clock = WaitedCompute()
    clock.start()
    begun = time.monotonic()
    lateness = []
    for step in range(1, 1001):
        clock.run(Stretch(1e-3))
        lateness.append(time.monotonic() - begun - step * 1e-3)
    late = sorted(lateness)
    print(
        f"1000 waits of 1 ms: late by {late[500] * 1e6:.0f} us (median), {late[900] * 1e6:.0f} us "
        f"(p90); after the last, {lateness[-1] * 1e6:.0f} us in all"
    )


def main() -> None:
    option_parser(__doc__).parse_args()
    build_times()
    link_errors()
    timer_lateness()


if __name__ == "__main__":
    main()
