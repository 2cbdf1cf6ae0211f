"""How well the timeline ranks the bundled domains' picks where compute is assumed to slow down
beside messages by one share for all clusters.

    python -m benchmarks.assumed_slowdown [datasets/runtimes]

Nothing is measured; it takes half a minute. For each share: Kendall's tau over the picks, the mean
over domains, and the mean size of the median excess of measured over predicted seconds. Last what
choosing the share is worth: each domain judged with the share that is best on all others.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from autosync.simulator.runtime_dataset import MeasuredDomain, load_dataset
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from benchmarks.evaluation.measured_pool import merged_by_messages
from benchmarks.output import option_parser, print_head, print_row

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


def scores(measured: MeasuredDomain, share: float) -> tuple[float, float]:
    """Tau over the picks, and the median excess."""
    cluster = replace(measured.domain.cluster, overlap_slowdown=share)
    domain = replace(measured.domain, cluster=cluster)
    predicted = TimelineSimulator().predict(domain, measured.population)
    seconds, picks = measured.label_seconds, measured.picks
    tau = float(np.nan_to_num(kendalltau(predicted[picks], seconds[picks]).statistic))
    return tau, float(np.median(seconds[picks] / predicted[picks] - 1.0))


def chosen_elsewhere(tau: NDArray[np.float64]) -> tuple[float, list[float]]:
    """tau `(domains, shares)`: the mean of each domain's at the share that is best on the others,
    and these shares."""
    found, shares = [], []
    for row in range(len(tau)):
        best = int(np.argmax(np.delete(tau, row, axis=0).mean(axis=0)))
        found.append(tau[row, best])
        shares.append(SHARES[best])
    return float(np.mean(found)), shares


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("datasets/runtimes"))
    given = parser.parse_args()
    domains = [each for each in map(merged_by_messages, load_dataset(given.folder)) if len(each)]
    table = np.array(
        [[scores(each, share) for share in SHARES] for each in domains if len(each.picks)]
    )
    print_head("share", "tau", "size of the median excess")
    for column, share in enumerate(SHARES):
        tau, excess = table[:, column].T
        print_row(f"{share:g}", f"{tau.mean():.2f}", f"{np.abs(excess).mean():.1%}")
    mean, shares = chosen_elsewhere(table[:, :, 0])
    print(f"chosen on the other domains: tau {mean:.2f}, shares {sorted(set(shares))}")


if __name__ == "__main__":
    main()
