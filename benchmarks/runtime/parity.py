"""With DDP's own buckets, the runtime beside torch's DDP: the goal is at most 1.00 of its time.

python -m benchmarks.runtime.parity

On the emulated cluster ranks sleep in place of computing, so only what delays messages shows. The
real models keep both cores busy, so that every microsecond of the engine's own work shows.
"""

from autosync.trials.contract import Workload
from autosync.trials.launchers.local_launcher import LocalLauncher
from benchmarks import small_models
from benchmarks.emulated import SCALES, cluster, domain_at, open_testbed
from benchmarks.gpu.beside_ddp import own_buckets
from benchmarks.measure import Way, ddp_way, paired, print_rows, print_title
from benchmarks.output import option_parser


def waited() -> None:
    for rho in (0.5, 1.0):
        domain = domain_at("resnet50", rho)
        with open_testbed(domain, SCALES["resnet50"]) as pool:
            print(f"  {pool.description}", flush=True)
            ways = [ddp_way(domain), Way("runtime, DDP's buckets", own_buckets(domain))]
            case = f"ResNet-50, rho = {rho:g}, compute waited"
            print_rows(paired(pool, domain, case, ways, rounds=10, iterations=4))


def real() -> None:
    launcher = LocalLauncher(workloads=("model=benchmarks.small_models:build_model",), repeats=0)
    for name in small_models.MODELS:
        domain = small_models.domain_of(name, cluster(1, 2), step_seconds=0.1)
        with launcher.open(Workload(domain, "model")) as pool:
            ways = [ddp_way(domain), Way("runtime, DDP's buckets", own_buckets(domain))]
            case = f"real {name}, 2 ranks of one thread over loopback"
            print_rows(paired(pool, domain, case, ways, rounds=16, iterations=12))


def main() -> None:
    option_parser(__doc__).parse_args()
    print_title("Runtime beside DDP, the same buckets")
    waited()
    real()


if __name__ == "__main__":
    main()
