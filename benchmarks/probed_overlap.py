"""Does a probe's made-up model show how much messages slow compute on a cluster?

    python -m benchmarks.probed_overlap [datasets/runtimes] [--domains vgg16-4x1 ...] [--repeats 3]

On the emulated cluster of each of the dataset's domains, at its scales: the slowdown that a
recorded trial of the probe's model shows, and one of the domain's own model; beside them the
slowdown with which the timeline's predictions of the domain's measured picks are right in the
middle. Leave the machine alone meanwhile.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from autosync.domain import Domain
from autosync.errors import AutosyncError
from autosync.search.cluster_probe import overlap_request, probing_domain, recorded_slowdown
from autosync.search.collect.collection_plan import CollectionTarget, domain_of, load_plan
from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.contract import Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher

SLOWDOWNS = np.linspace(0.0, 0.6, 13)


def measured_slowdowns(domain: Domain, target: CollectionTarget, repeats: int) -> list[float]:
    """Of each repeat that tells one."""
    byte_scale, time_scale = target.scales
    workload = Workload(domain, byte_scale=byte_scale, time_scale=time_scale)
    found = []
    with TestbedLauncher().open(workload) as pool:
        for repeat in range(repeats):
            key, passes = f"overlap/{repeat}", (target.warmup, target.iterations)
            request = overlap_request(domain, key, *passes)
            slowdown = recorded_slowdown(pool.run(request), domain)
            found += [] if slowdown is None else [slowdown]
    return found


def wanted_slowdown(measured: MeasuredDomain) -> tuple[float, float]:
    """The slowdown with which half of the picks take longer than predicted, of SLOWDOWNS; and their
    median excess without one."""
    picks = measured.picks
    population, seconds = measured.population.take(picks), measured.label_seconds[picks]
    excess = []
    for slowdown in SLOWDOWNS:
        cluster = replace(measured.domain.cluster, overlap_slowdown=float(slowdown))
        domain = replace(measured.domain, cluster=cluster)
        predicted = TimelineSimulator().predict(domain, population)
        excess.append(float(np.median(seconds / predicted - 1.0)))
    return float(SLOWDOWNS[int(np.argmin(np.abs(excess)))]), excess[0]


def words(found: list[float]) -> str:
    return " ".join(f"{each:.2f}" for each in found) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("datasets/runtimes"))
    parser.add_argument("--domains", nargs="+", metavar="NAME", help="else all")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    known = {each.name: each for each in load_dataset(given.folder)}
    print("| domain | the probe's model | its own | wanted by its picks | excess without |")
    print("|---|---|---|---|---|", flush=True)
    for target in load_plan(given.folder / "plan.yaml").domains:
        if given.domains and target.name not in given.domains:
            continue
        own = domain_of(target)
        measured = known.get(f"{own.graph.name}, {own.cluster.name}")
        if measured is None:
            continue
        probing = probing_domain(own.cluster, target.scales[1])
        try:
            found = [measured_slowdowns(each, target, given.repeats) for each in (probing, own)]
        except AutosyncError as error:
            print(f"| {target.name} | {error} | | | |", flush=True)
            continue
        wanted, excess = wanted_slowdown(measured)
        columns = (target.name, *map(words, found), f"{wanted:.2f}", f"{excess:.1%}")
        print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
