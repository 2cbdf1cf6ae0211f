"""Prints what the timeline predicts of every proposer beside the best of many samples, on the
domains of the measured dataset, with the sampler's constraints switched on and off.

python -m benchmarks.search.proposers
"""

import numpy as np

from autosync.bundled_data import data_folder
from autosync.domain import Domain
from autosync.population import encode
from autosync.search.collect.collection_log import stored_domain
from autosync.search.designs.design_table import DESIGNS, fitted
from autosync.search.edits.local_search import refined
from autosync.search.loop.design_candidates import RACED
from autosync.search.sampler.sampling import sample
from autosync.search.space import Space
from autosync.simulator.limit import iteration_limit
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from benchmarks.output import option_parser

SAMPLES, SEEDS = 2048, 3
BASELINES = ("ps_load_balanced", "horovod")
"""A sample hits where it beats the better one (thesis, figure 8.2)."""

SPACES = {
    "both constraints": Space(),
    "no load balance": Space(load_balance=False),
    "no adjacent merge": Space(adjacent_merge=False),
    "neither": Space(load_balance=False, adjacent_merge=False),
    "methods of shards": Space(shard_methods=True),
}


def predicted(domain: Domain, strategies: list[Strategy]) -> list[float]:
    return [float(each) for each in TimelineSimulator().predict(domain, encode(strategies, domain))]


def sampled(domain: Domain, space: Space, seed: int) -> np.ndarray:
    return TimelineSimulator().predict(domain, sample(domain, space, 0, SAMPLES, seed))


def report(name: str, domain: Domain) -> None:
    built = {design: fitted(domain, Space(), build) for design, build in DESIGNS.items()}
    designs = {design: strategy for design, strategy in built.items() if strategy is not None}
    seconds = dict(zip(designs, predicted(domain, list(designs.values())), strict=True))
    promising = sorted((d for d in designs if d != "ddp"), key=seconds.__getitem__)[:RACED]
    for design in promising:
        found = refined(designs[design], domain, Space(), 0)
        seconds[f"{design}, refined"] = predicted(domain, [found])[0]
    drawn = {
        kind: [sampled(domain, space, seed) for seed in range(SEEDS)]
        for kind, space in SPACES.items()
    }
    best = float(np.mean([each.min() for each in drawn["both constraints"]]))
    limit = iteration_limit(domain).seconds
    print(f"\n{name}: limit {limit * 1e3:.1f} ms; best of {SAMPLES} samples {best * 1e3:.1f} ms")
    for design in sorted(seconds, key=seconds.__getitem__):
        value = seconds[design]
        print(
            f"  {design:36s} {value * 1e3:8.1f} ms  {value / best:6.3f} of the best sample  "
            f"{limit / value:6.1%} of the limit"
        )
    baseline = min(seconds[each] for each in BASELINES if each in seconds)
    for kind, population in drawn.items():
        least = [each.min() / best for each in population]
        hits = np.mean([np.mean(each < baseline) for each in population])
        print(
            f"  {SAMPLES} samples, {kind:20s} best {np.mean(least):6.3f} "
            f"({min(least):.3f} to {max(least):.3f}), median "
            f"{np.mean([np.median(each) for each in population]) / best:6.2f}, hit rate {hits:6.1%}"
        )


def main() -> None:
    option_parser(__doc__).parse_args()
    folder = data_folder("runtimes")
    for file in sorted((folder / "targets").glob("*.json")):
        domain = stored_domain(folder, file.stem)
        assert domain is not None
        report(file.stem, domain)


if __name__ == "__main__":
    main()
