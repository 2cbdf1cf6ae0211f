"""How near priority with slices and reduce-scatter/all-gather come to what a ring's bytes allow.

python -m benchmarks.runtime.schedules [--quick] [--json FILE]

rho is the ring all-reduce of the whole model at line rate over compute. The bound is
the limit over strategies with a ring's bytes: compute, the bytes, and both between each
gradient's readiness and its next use. The goal is 95 % of it.
"""

from autosync.domain import Domain
from autosync.search.designs import known_designs
from autosync.search.designs.building_blocks import assemble, collective
from autosync.strategy import AllReduce, ReduceScatter, Schedule, Strategy
from autosync.units import MIB
from benchmarks.emulated import SCALES, domain_at, open_testbed, ring_bound, ring_seconds
from benchmarks.measure import Report, Way, arguments, ddp_way, paired

MODELS = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "bert_base": "BERT-base"}


GROUP_BYTES = MIB
"""Merges what is tiny only: a larger group waits for its last gradient, and slices cut what is
long anyway."""


def sliced(slice_mib: float) -> Schedule:
    return Schedule("priority", slice_bytes=int(slice_mib * MIB), overlap_forward=True)


def priority(domain: Domain, slice_mib: float) -> Strategy:
    choices = collective(domain, AllReduce(0))
    return assemble(domain, choices, schedule=sliced(slice_mib), limit_bytes=GROUP_BYTES)


def halves(domain: Domain, slice_mib: float) -> Strategy:
    """DeAR in slices, nearest next use first."""
    choices = collective(domain, ReduceScatter(0))
    return assemble(domain, choices, schedule=sliced(slice_mib), limit_bytes=GROUP_BYTES)


def measure(report: Report, model: str, rho: float, rounds: int) -> None:
    domain, scales = domain_at(model, rho), SCALES[model]
    bound = ring_bound(domain)
    size = scales.slice_mib
    ways = [
        ddp_way(domain),
        Way(f"priority, {size:g} MiB slices", priority(domain, size)),
        Way(f"reduce-scatter, {size:g} MiB slices", halves(domain, size)),
        Way("reduce-scatter, 25 MiB (DeAR)", known_designs.dear(domain)),
    ]
    with open_testbed(domain, scales) as pool:
        ring = ring_seconds(domain.graph.size_bytes, domain.world_size)
        report.note(
            f"{pool.description}; compute {domain.profile.compute_seconds * 1e3:.1f} ms, "
            f"ring {ring * 1e3:.1f} ms, bound {bound * 1e3:.1f} ms"
        )
        case = f"{MODELS[model]}, rho = {rho:g}, 4 nodes"
        report.add(paired(pool, domain, case, ways, rounds, 3, bound, warmup=1))


def main() -> None:
    given = arguments(__doc__)
    report = Report("Priority with slices, and reduce-scatter/all-gather, on 4 nodes")
    models = ("resnet50",) if given.quick else tuple(MODELS)
    for model in models:
        for rho in (1.0, 2.0):
            measure(report, model, rho, 2 if given.quick else 4)
    report.finish(given.json)


if __name__ == "__main__":
    main()
