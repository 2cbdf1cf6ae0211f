"""What queues on a testbed's links cost: measured strategies once more, in turn on two testbeds.

The connections of one keep the windows that `link_shaping` gives them; those of the other fill its
queues.

python -m benchmarks.testbed_queues [--domains resnet50-uneven ...] [--strategies 12]

The domains are those of `datasets/runtimes/plan.yaml`; of each, strategies spread over the faster
half of those measured. Printed: medians, and 10th and 90th percentiles over strategies, of seconds
with windows over those without, and of both over the bundled labels. Leave the machine alone
meanwhile; a strategy takes about ten seconds.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from numpy.typing import NDArray

from autosync.bundle import make_bundle
from autosync.bundled_data import data_file, data_folder
from autosync.errors import AutosyncError
from autosync.population import decode
from autosync.search.collect.collection_passes import TIMEOUT_SECONDS
from autosync.search.collect.collection_plan import CollectionTarget, load_plan, select_targets
from autosync.simulator.evaluation.measured_dataset import load_dataset
from autosync.simulator.evaluation.measured_domain import MeasuredDomain
from autosync.trials.contract import Pool, TrialRequest, Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.testbed import link_shaping

F64 = NDArray[np.float64]

UNBOUNDED_SECONDS = 1.0
"""A window that no connection fills before its queue is full."""


@contextmanager
def windows_of(seconds: float) -> Iterator[None]:
    """Testbeds that are built meanwhile give connections so much of the cluster's time."""
    usual = link_shaping.WINDOW_SECONDS
    link_shaping.WINDOW_SECONDS = seconds
    try:
        yield
    finally:
        link_shaping.WINDOW_SECONDS = usual


def measured_of(measured: Sequence[MeasuredDomain], target: CollectionTarget) -> MeasuredDomain:
    """The bundled measurements of a target of the plan."""
    for each in measured:
        if (each.domain.graph.name, each.domain.cluster.name) == (target.model, target.cluster):
            return each
    raise SystemExit(f"no bundled measurements of {target.name}")


def in_turn(
    measured: MeasuredDomain, target: CollectionTarget, strategies: int
) -> tuple[F64, F64, F64]:
    """Labels, seconds with windows and without, of each strategy; NaN where a trial failed."""
    order = np.argsort(measured.label_seconds)[: max(1, len(measured) // 2)]
    chosen = order[np.linspace(0, len(order) - 1, min(strategies, len(order))).astype(np.int64)]
    domain, (byte_scale, time_scale) = measured.domain, target.scales
    found = np.full((2, len(chosen)), np.nan)
    with ExitStack() as pools:
        opened: list[Pool] = []
        for seconds in (link_shaping.WINDOW_SECONDS, UNBOUNDED_SECONDS):
            with windows_of(seconds):
                workload = Workload(domain, byte_scale=byte_scale, time_scale=time_scale)
                opened.append(pools.enter_context(TestbedLauncher().open(workload)))
        for place, index in enumerate(chosen.tolist()):
            bundle = make_bundle(decode(measured.population, index, domain), domain)
            for row, pool in enumerate(opened):
                request = TrialRequest(
                    key=f"{row}/{index}",
                    bundle=bundle,
                    warmup=target.warmup,
                    iterations=target.iterations,
                    timeout_seconds=TIMEOUT_SECONDS * max(1.0, time_scale),
                )
                found[row, place] = pool.run(request).step_seconds or np.nan
    return measured.label_seconds[chosen], found[0], found[1]


def spread(ratios: F64) -> str:
    median, low, high = np.nanpercentile(100 * (ratios - 1), (50, 10, 90))
    return f"{median:+.1f} % ({low:+.1f} to {high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--domains", nargs="+", default=["resnet50-uneven"], metavar="NAME")
    parser.add_argument("--strategies", type=int, default=12)
    given = parser.parse_args()
    plan = select_targets(load_plan(data_file("runtimes", "plan.yaml")), tuple(given.domains))
    measured = load_dataset(data_folder("runtimes"))
    print("domain: windows over full queues; windows over labels; full queues over labels")
    for target in plan.domains:
        try:
            labels, windows, queues = in_turn(
                measured_of(measured, target), target, given.strategies
            )
        except AutosyncError as error:
            print(f"{target.name}: {error}", flush=True)
            continue
        parts = (windows / queues, windows / labels, queues / labels)
        print(f"{target.name}: {'; '.join(map(spread, parts))}", flush=True)


if __name__ == "__main__":
    main()
