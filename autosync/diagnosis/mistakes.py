"""Common mistakes of distributed jobs, recognized from what ranks recorded, each with its mend."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autosync.diagnosis.breakdown import Breakdown
from autosync.diagnosis.job_facts import JobFacts
from autosync.units import MIB, bytes_in_words, milliseconds

SMALL_MESSAGE_BYTES = MIB
MANY_MESSAGES = 8
"""Collectives of an iteration from which on small ones are worth merging."""
FAST_PORT_GBPS = 25.0
"""From here on one TCP connection is slower than the port (docs/gpu-clusters.md)."""
IDLE_SHARE = 0.2
"""Of an iteration, without kernels and without messages: the host is too slow for its GPU."""
INPUT_SHARE = 0.05
HIDDEN_SHARE = 0.1
"""Of the time of messages: less is no overlap."""
MUCH_FASTER = 2.0
MERGING = {
    "ddp": "Raise bucket_cap_mb (25 by default).",
    "fsdp1": "Give FullyShardedDataParallel an auto_wrap_policy of larger modules.",
    "fsdp2": "Give fully_shard larger modules, or lists of modules.",
    "none": "Send several gradients in one message.",
}
"""How messages are merged, by the model's wrapping."""
BY_DISTRIBUTE = "Where autosync.distribute has made it, that belongs into its ddp_options."
"""In place of a plan, `distribute` looks for unused parameters unless its options say otherwise."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """name: for programs. what: is wrong, with the values seen. mend: what to do."""

    name: str
    what: str
    mend: str


def find_mistakes(
    breakdown: Breakdown, facts: Sequence[JobFacts], passes: int = 1
) -> tuple[Mistake, ...]:
    """facts: of every rank, by number; empty of traces, which do not hold them. passes: forward
    passes of the model in an iteration."""
    of_job = (_of_backend, _of_ports, _of_ddp, _of_accumulation, _of_compiling)
    finders = (*(of_job if facts else ()), _of_messages, _of_host)
    return tuple(mistake for find in finders for mistake in find(breakdown, facts, passes))


def _of_backend(breakdown: Breakdown, facts: Sequence[JobFacts], passes: int) -> Iterator[Mistake]:
    first = facts[0]
    if first.device == "cuda" and first.backend == "gloo":
        yield Mistake(
            "gloo_on_gpu",
            "the backend is gloo and the parameters are on GPUs: each gradient passes host memory.",
            'Initialize with init_process_group("nccl").',
        )
    if len({each.host for each in facts}) < 2:
        return
    for each in facts:
        faster = [pair for pair in each.others_gbps if pair[1] >= MUCH_FASTER * _rate_of(each)]
        if faster:
            name, gbps = max(faster, key=lambda pair: pair[1])
            yield Mistake(
                "slow_interface",
                f"rank {each.rank} on {each.host} sends by {each.interface} "
                f"({each.interface_gbps:g} Gbit/s); {name} has {gbps:g}.",
                f"Set {each.backend.upper()}_SOCKET_IFNAME={name} on every rank.",
            )
            break
    achieved = (breakdown.bus_bytes_per_second or 0.0) * 8 / 1e9
    nominal = first.interface_gbps or 0.0
    slow = 0 < achieved < nominal / MUCH_FASTER
    if first.backend == "nccl" and nominal >= FAST_PORT_GBPS and slow and not first.nccl_sockets:
        yield Mistake(
            "one_socket",
            f"messages reach {achieved:.1f} of the {nominal:g} Gbit/s of {first.interface}, with "
            "NCCL's default number of sockets.",
            "Where NCCL sends by TCP (NCCL_DEBUG=INFO says NET/Socket), try "
            "NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4.",
        )


def _of_ports(breakdown: Breakdown, facts: Sequence[JobFacts], passes: int) -> Iterator[Mistake]:
    """Of the first rank whose port is far, with the number of the others."""
    far = [(each, each.far_port) for each in facts if each.far_port is not None]
    if len({each.host for each in facts}) < 2 or not far:
        return
    first, port = far[0]
    others = f" The same holds for {len(far) - 1} other ranks." if len(far) > 1 else ""
    where = "another host bridge"
    if port.gpu_node != port.port_node:
        where = f"NUMA node {port.port_node}, the GPU at node {port.gpu_node}"
    variable = "NCCL_SOCKET_IFNAME" if port.port == first.interface else "NCCL_IB_HCA"
    yield Mistake(
        "far_nic",
        f"rank {first.rank} on {first.host} sends by {port.port}, which is at {where}: its "
        f"messages cross the processors' link.{others}",
        f"Let it send by {port.nearer}, which is nearer ({variable}={port.nearer})."
        if port.nearer
        else "Use the GPUs beside the port (CUDA_VISIBLE_DEVICES), or put a port beside these.",
    )


def _rate_of(facts: JobFacts) -> float:
    """Infinite where it is not known: nothing is said to be faster then."""
    return facts.interface_gbps or float("inf")


def _of_ddp(breakdown: Breakdown, facts: Sequence[JobFacts], passes: int) -> Iterator[Mistake]:
    ddp = facts[0].ddp
    if ddp is None:
        return
    if ddp.find_unused_parameters and not any(each.ddp and each.ddp.unused_bytes for each in facts):
        yield Mistake(
            "find_unused_parameters",
            "find_unused_parameters=True, and the last iteration that DDP sampled used all: "
            "DDP walks the graph and reduces a map of used parameters for nothing.",
            "Where every batch uses all, give DistributedDataParallel find_unused_parameters=False "
            f"(where the graph never changes, static_graph=True). {BY_DISTRIBUTE}",
        )
    if not ddp.gradient_as_bucket_view:
        size = bytes_in_words(facts[0].gradient_bytes)
        yield Mistake(
            "gradient_as_bucket_view",
            f"gradient_as_bucket_view is off: {size} of gradients are held twice and copied out of "
            "their buckets in every iteration.",
            f"Give DistributedDataParallel gradient_as_bucket_view=True. {BY_DISTRIBUTE}",
        )


def _of_accumulation(
    breakdown: Breakdown, facts: Sequence[JobFacts], passes: int
) -> Iterator[Mistake]:
    ddp = facts[0].ddp
    if ddp is None or passes < 2:
        return
    # By size: the script all-reduces its metrics, and DDP its map of used parameters.
    sums = Counter(e.size_bytes for e in breakdown.collectives if e.operation == "all_reduce")
    buckets = len(ddp.bucket_bytes)
    wanted = Counter(ddp.bucket_bytes).items()
    if buckets and all(sums[size] >= passes * count for size, count in wanted):
        yield Mistake(
            "accumulation_without_no_sync",
            f"an iteration has {passes} passes, and each of them all-reduces all {buckets} "
            f"buckets: {passes - 1} of {passes} sums are not needed.",
            "Run all passes but the last within `with model.no_sync():`.",
        )


def _of_compiling(
    breakdown: Breakdown, facts: Sequence[JobFacts], passes: int
) -> Iterator[Mistake]:
    in_flight = breakdown.mean("in_flight")
    hidden = in_flight - breakdown.mean("transfer")
    if facts[0].compiled and in_flight and hidden < HIDDEN_SHARE * in_flight:
        yield Mistake(
            "compiled_as_one_region",
            "the model is compiled as one region, whose gradients all come at its end: "
            f"{milliseconds(in_flight)} of messages overlap with no compute.",
            "Compile its blocks (`block.compile()` for each), or wrap it in DDP before "
            "torch.compile, whose DDPOptimizer splits the region by buckets.",
        )


def _of_messages(breakdown: Breakdown, facts: Sequence[JobFacts], passes: int) -> Iterator[Mistake]:
    sums = [each for each in breakdown.collectives if each.size_bytes]
    small = [each for each in sums if each.size_bytes < SMALL_MESSAGE_BYTES]
    if len(small) < MANY_MESSAGES or 2 * len(small) < len(sums):
        return
    seconds, size = sum(each.transfer for each in small), sum(each.size_bytes for each in small)
    yield Mistake(
        "small_buckets",
        f"{len(small)} of {len(sums)} messages are smaller than {bytes_in_words(MIB)}: "
        f"{bytes_in_words(size)} in all take {milliseconds(seconds)}.",
        MERGING[facts[0].wrapping if facts else "none"],
    )


def _of_host(breakdown: Breakdown, facts: Sequence[JobFacts], passes: int) -> Iterator[Mistake]:
    seconds = breakdown.iteration_seconds
    python, loading = breakdown.mean("python"), breakdown.mean("input")
    if breakdown.on_device and python > IDLE_SHARE * seconds:
        yield Mistake(
            "host_bound",
            f"GPUs do nothing in {python / seconds:.0%} of an iteration, since their kernels are "
            "launched too late.",
            "torch.compile (mode='reduce-overhead' where shapes are fixed), a larger batch, "
            "optimizers with fused=True, no .item() or print within the step.",
        )
    if loading > INPUT_SHARE * seconds:
        yield Mistake(
            "waits_for_input",
            f"ranks wait for input in {loading / seconds:.0%} of an iteration.",
            "More workers of the DataLoader (num_workers), pin_memory=True, or cheaper transforms.",
        )
