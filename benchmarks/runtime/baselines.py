"""torch's other ways beside the runtime's: FSDP2, ZeroRedundancyOptimizer, DDP's bf16 hook.

python -m benchmarks.runtime.baselines [--quick] [--json FILE]

All on the same replay of ResNet-50 on the same testbed, in the same rounds. FSDP2 wraps each
residual block. The memory of each way is
that of fresh workers that run nothing else.
"""

from dataclasses import replace

from autosync.domain import Domain
from autosync.search.designs import known_designs, torch_engines
from autosync.strategy import AllReduce, Encoding, ReduceScatter, Strategy, VariableChoice
from benchmarks.emulated import SCALES, cluster, domain_at, open_testbed
from benchmarks.measure import Report, Way, arguments, ddp_way, paired

MEGABYTE = 1e6


def in_bf16(strategy: Strategy) -> Strategy:
    """The same with every collective in bf16, as DDP's compression hook does it."""

    def packed_choice(choice: VariableChoice) -> VariableChoice:
        packed = Encoding("bf16")
        shards = (
            replace(shard, encoding=packed)
            if isinstance(shard, AllReduce | ReduceScatter)
            else shard
            for shard in choice.shards
        )
        return replace(choice, shards=tuple(shards))

    return replace(strategy, choices=tuple(packed_choice(choice) for choice in strategy.choices))


def ways_of(domain: Domain) -> list[Way]:
    ddp = known_designs.ddp(domain)
    return [
        ddp_way(domain),
        Way("DDP, bf16 hook (lossy)", torch_engines.ddp_hooked(domain, Encoding("bf16"))),
        Way("DDP, ZeroRedundancyOptimizer", ddp, "zero"),
        Way("FSDP2, fully_shard", torch_engines.fsdp2(domain)),
        Way("ZeRO-2, fully_shard", torch_engines.zero2(domain)),
        Way("runtime, DeAR", known_designs.dear(domain)),
        Way("runtime, DeAR in 4 MiB slices", known_designs.dear_sliced(domain)),
        Way("runtime, ZeRO-1 into forward", known_designs.zero1_overlap(domain)),
        Way("runtime, DeAR, bf16 (lossy)", in_bf16(known_designs.dear(domain))),
    ]


def memory(report: Report, domain: Domain) -> None:
    """Peak resident size of a rank, beside DDP's, by way."""
    reference = 0
    for way in ways_of(domain):
        with open_testbed(domain, SCALES["resnet50"]) as pool:
            row = paired(pool, domain, "memory", [way], 1, 2, warmup=2)[0]
        if row.error:
            report.note(f"memory, {way.name}: {row.error[:80]}")
            continue
        reference = reference or row.peak_memory_bytes
        more = (row.peak_memory_bytes - reference) / MEGABYTE
        model = domain.graph.size_bytes * SCALES["resnet50"].byte_scale / MEGABYTE
        report.note(
            f"memory, {way.name}: {row.peak_memory_bytes / MEGABYTE:.0f} MB, "
            f"DDP {more:+.1f} MB (the model's variables: {model:.1f} MB)"
        )


def main() -> None:
    given = arguments(__doc__)
    report = Report("Beside torch's other ways")
    for rho in (1.0,) if given.quick else (1.0, 2.0):
        domain = domain_at("resnet50", rho, cluster())
        with open_testbed(domain, SCALES["resnet50"]) as pool:
            report.note(pool.description)
            case = f"ResNet-50, rho = {rho:g}, 4 nodes"
            report.add(paired(pool, domain, case, ways_of(domain), 2 if given.quick else 5, 3))
    if not given.quick:
        memory(report, domain_at("resnet50", 1.0))
    report.finish(given.json)


if __name__ == "__main__":
    main()
