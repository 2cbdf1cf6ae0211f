"""With DDP's own buckets, the runtime beside torch's DDP: the goal is at most 1.00 of its time.

python -m benchmarks.runtime.parity [--quick] [--json FILE]

On the emulated cluster ranks sleep in place of computing, so only what delays messages shows. The
real models keep both cores busy, so that every microsecond of the engine's own work shows.
"""

from autosync.trials.contract import Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from benchmarks import small_models
from benchmarks.emulated import SCALES, cluster, domain_at, open_testbed
from benchmarks.gpu.beside_ddp import own_buckets
from benchmarks.measure import Report, Way, arguments, ddp_way, paired


def waited(report: Report, rounds: int) -> None:
    for rho in (0.5, 1.0):
        domain = domain_at("resnet50", rho)
        with open_testbed(domain, SCALES["resnet50"]) as pool:
            report.note(pool.description)
            ways = [ddp_way(domain), Way("runtime, DDP's buckets", own_buckets(domain))]
            case = f"ResNet-50, rho = {rho:g}, compute waited"
            report.add(paired(pool, domain, case, ways, rounds, iterations=4))


def real(report: Report, rounds: int) -> None:
    launcher = LocalLauncher(workloads=("model=benchmarks.small_models:build_model",), repeats=0)
    for name in small_models.MODELS:
        domain = small_models.domain_of(name, cluster(1, 2), step_seconds=0.1)
        with launcher.open(Workload(domain, "model")) as pool:
            ways = [ddp_way(domain), Way("runtime, DDP's buckets", own_buckets(domain))]
            case = f"real {name}, 2 ranks of one thread over loopback"
            report.add(paired(pool, domain, case, ways, rounds, iterations=12))


def main() -> None:
    given = arguments(__doc__)
    report = Report("Runtime beside DDP, the same buckets")
    waited(report, 4 if given.quick else 10)
    real(report, 4 if given.quick else 16)
    report.finish(given.json)


if __name__ == "__main__":
    main()
