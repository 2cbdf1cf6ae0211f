"""How well two passes over the same strategies agree, by time scale and iterations of a pass.

What the cores do themselves repeats worst on a shared machine; the larger the time scale, the less
of an iteration it is. From this come `time_scale`, `warmup` and `iterations` in
`datasets/runtimes/plan.yaml`. Leave the machine alone meanwhile.

python -m benchmarks.repeatability [--domain transformer-2x2 ...] [--strategies 12]
"""

import random
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autosync.bundle import Bundle, make_bundle
from autosync.bundled_data import data_file
from autosync.search.collect.collection_passes import TIMEOUT_SECONDS, strategies_of
from autosync.search.collect.collection_plan import (
    CollectionTarget,
    domain_of,
    load_plan,
    select_targets,
)
from autosync.trials.contract import Pool, TrialRequest, Workload
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from autosync.trials.trial_procedure import PASS_TOLERANCE
from benchmarks.output import option_parser, print_head, print_row


@dataclass(frozen=True, slots=True)
class PassProtocol:
    time_scale: float
    warmup: int
    iterations: int

    def __str__(self) -> str:
        return f"k = {self.time_scale:g}, {self.warmup} + {self.iterations}"


PROTOCOLS = (PassProtocol(1, 2, 5), PassProtocol(2, 2, 5), PassProtocol(4, 1, 3))
SEED = 5
"""Of the strategies that are drawn."""


def measured(
    pool: Pool, protocol: PassProtocol, asked: list[Bundle], pass_: int
) -> NDArray[np.float64]:
    """Seconds an iteration of each of `asked`, run in an order of the pass's own; NaN: failed."""
    seconds = np.full(len(asked), np.nan)
    order = list(range(len(asked)))
    random.Random(pass_).shuffle(order)
    for i in order:
        request = TrialRequest(
            key=f"{pass_}/{i}",
            bundle=asked[i],
            warmup=protocol.warmup,
            iterations=protocol.iterations,
            timeout_seconds=TIMEOUT_SECONDS * max(1.0, protocol.time_scale),
        )
        seconds[i] = pool.run(request).step_seconds or np.nan
    return seconds


def report(target: CollectionTarget, protocol: PassProtocol, strategies: int) -> None:
    domain = domain_of(target)
    chosen = strategies_of(domain, 10 * strategies, SEED)
    drawn = random.Random(SEED).sample(chosen, min(strategies, len(chosen)))
    asked = [make_bundle(each.strategy, domain) for each in drawn]
    byte_scale, _ = target.scales
    workload = Workload(domain, byte_scale=byte_scale, time_scale=protocol.time_scale)
    with TestbedLauncher(repeats=0).open(workload) as pool:
        begun = time.monotonic()
        one, two = (measured(pool, protocol, asked, pass_) for pass_ in (1, 2))
        took = (time.monotonic() - begun) / 2 / len(asked)
    apart = np.abs(one - two) / ((one + two) / 2)
    apart = apart[~np.isnan(apart)]
    middle, most = np.quantile(apart, (0.5, 0.75)) if len(apart) else (np.nan, np.nan)
    quartiles = f"{middle:.1%}", f"{most:.1%}", f"{np.mean(apart > PASS_TOLERANCE):.0%}"
    twice = f"{len(apart)} of {len(asked)}"
    print_row(target.name, protocol, twice, *quartiles, f"{took:.1f} s")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--domain", action="append", metavar="NAME")
    parser.add_argument("--strategies", type=int, default=12)
    given = parser.parse_args()
    names = tuple(given.domain or ("transformer-2x2",))
    plan = select_targets(load_plan(data_file("runtimes", "plan.yaml")), names)
    quartiles = "median difference", "third quartile"
    print_head("domain", "pass", "ran twice", *quartiles, "above 5 %", "takes")
    for target in plan.domains:
        for protocol in PROTOCOLS:
            report(target, protocol, given.strategies)


if __name__ == "__main__":
    main()
