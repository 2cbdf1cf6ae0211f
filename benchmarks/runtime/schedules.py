"""How near priority with slices and reduce-scatter/all-gather come to what a ring's bytes allow.

python -m benchmarks.runtime.schedules

rho is the ring all-reduce of the whole model at line rate over compute. The bound is
the limit over strategies with a ring's bytes: compute, the bytes, and both between each
gradient's readiness and its next use. The goal is 95 % of it.
"""

from autosync.domain import Domain
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.strategy import AllReduce, ReduceScatter, Schedule, Synchronizer
from autosync.units import MIB
from benchmarks.emulated import SCALES, compare, domain_at, ring_bound, ring_seconds
from benchmarks.measure import Way, ddp_way, print_title
from benchmarks.output import option_parser

MODELS = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "bert_base": "BERT-base"}


GROUP_BYTES = MIB
"""Merges what is tiny only: a larger group waits for its last gradient, and slices cut what is
long anyway."""


def sliced_way(name: str, domain: Domain, kind: Synchronizer, slice_mib: float) -> Way:
    """Nearest next use first."""
    schedule = Schedule("priority", slice_bytes=int(slice_mib * MIB), overlap_forward=True)
    choices = collective(domain, kind)
    strategy = assemble(domain, choices, schedule=schedule, limit_bytes=GROUP_BYTES)
    return Way(f"{name}, {slice_mib:g} MiB slices", strategy)


def measure(model: str, rho: float) -> None:
    domain, scales = domain_at(model, rho), SCALES[model]
    bound = ring_bound(domain)
    ways = [
        ddp_way(domain),
        sliced_way("priority", domain, AllReduce(0), scales.slice_mib),
        sliced_way("reduce-scatter", domain, ReduceScatter(0), scales.slice_mib),
        Way("reduce-scatter, 25 MiB (DeAR)", known_designs.dear(domain)),
    ]
    ring = ring_seconds(domain.graph.size_bytes, domain.world_size)
    note = (
        f"; compute {domain.profile.compute_seconds * 1e3:.1f} ms, "
        f"ring {ring * 1e3:.1f} ms, bound {bound * 1e3:.1f} ms"
    )
    case = f"{MODELS[model]}, rho = {rho:g}, 4 nodes"
    compare(domain, scales, case, ways, 4, bound, warmup=1, note=note)


def main() -> None:
    option_parser(__doc__).parse_args()
    print_title("Priority with slices, and reduce-scatter/all-gather, on 4 nodes")
    for model in MODELS:
        for rho in (1.0, 2.0):
            measure(model, rho)


if __name__ == "__main__":
    main()
