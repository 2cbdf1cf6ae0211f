"""Plans that lag, of parameter servers with clocks, measured over predicted.

python -m benchmarks.staleness.predictions

A replay of ResNet-50 on four emulated nodes whose message costs were probed first, with the
timeline's predictions at these costs. rho is a ring all-reduce of everything over compute: below 1
compute is the limit of a plan that lags far enough, above 1 the links are. Nobody straggles.
"""

from autosync.allowed import Allowed
from autosync.cluster import Cluster
from autosync.extensions.staleness.document import late_by
from autosync.extensions.staleness.proposals import clocked_servers
from autosync.population import encode
from autosync.search.cluster_probe import probe_costs
from autosync.simulator.limit import iteration_limit
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.trials.launchers.testbed_launcher import TestbedLauncher
from benchmarks.emulated import Scales, cluster, compare, domain_at
from benchmarks.measure import Way, ddp_way, print_title
from benchmarks.output import option_parser

MODEL = "resnet50"
SCALES = Scales(1 / 16, 16, 4)
STALENESS = (0, 1, 4)


def measure(on: Cluster, rho: float) -> None:
    domain = domain_at(MODEL, rho, on)
    servers = clocked_servers(domain)
    late = [Way(f"servers, s = {s}", servers.carrying(*late_by(s))) for s in STALENESS]
    ways = [ddp_way(domain), *late]
    bound = iteration_limit(domain, Allowed(staleness=STALENESS, factors=False)).seconds
    case = f"{MODEL}, rho = {rho:g}, 4 nodes"
    rows = compare(domain, SCALES, case, ways, 3, bound)
    population = encode([way.strategy for way in ways], domain)
    for row, seconds in zip(rows, TimelineSimulator().predict(domain, population), strict=True):
        print(
            f"  {row.way}: measured {row.step_seconds * 1e3:.1f} ms, predicted "
            f"{seconds * 1e3:.1f} ms, measured over predicted {row.step_seconds / seconds:.3f}"
        )


def main() -> None:
    option_parser(__doc__).parse_args()
    print_title("Plans that lag, measured over predicted")
    launcher = TestbedLauncher()
    fit = probe_costs(launcher, cluster(), SCALES.byte_scale, SCALES.time_scale, brief=True)
    for rho in (0.7, 1.5):
        measure(fit.cluster, rho)


if __name__ == "__main__":
    main()
