"""Predicted peak memory against what the CPU's allocator counts (torch.profiler, profile_memory),
or a GPU's (torch.cuda.max_memory_allocated).

A training step of bundled models alone, then hand-designed strategies and torch's own on two ranks,
on four those that shard within nodes; on a GPU the ranks share it.

    python -m benchmarks.peak_memory [--alone MODEL:BATCH ...] [--strategies MODEL:BATCH]
        [--designs NAME ...] [--accumulate N] [--device cuda] [--backend nccl] [--json FILE]
"""

import gc
import os
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

import autosync
from autosync.bundle import Bundle, make_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.cluster.devices import device_type_of_gpu
from autosync.domain import Domain, Optimizer
from autosync.importing.several_examples import moved_examples
from autosync.importing.training_step import loss_of, module_arguments
from autosync.models import bundled
from autosync.population import encode
from autosync.profiling import estimate_profile
from autosync.search.designs.design_table import DESIGNS, TORCH_DESIGNS
from autosync.simulator.memory.peak_memory import memory_of
from autosync.simulator.numba_compiler import compile_plans_fast
from autosync.simulator.sharded_strategy import held_units, sharded_by
from autosync.strategy import Encoding, Strategy
from autosync.torch_engine import FullyShard
from autosync.trials.machine import usable_cores
from autosync.trials.request_names import BackendName
from autosync.trials.session import ReusedGroups, TrialAttachment, attach
from benchmarks.gpu.ranks import gpu_options, machine_facts, on_ranks
from benchmarks.models import build
from benchmarks.output import write_json

MODELS = (
    "resnet50:8", "vgg16:4", "densenet121:8", "bert_3l:16", "bert_6l:8", "bert_base:4",
    "transformer:8", "gpt2:1", "ncf_dense:256",
)  # fmt: skip
NAMES = (
    "ddp", "all_reduce_25mb", "priority_sliced", "reduce_scatter_25mb", "dear", "zero1",
    "ps_one_server", "ps_load_balanced", "fsdp2", "zero2", "ddp_bf16", "ddp_fp16", "ddp_powersgd",
)  # fmt: skip
SHARDINGS: dict[str, Callable[[tuple[str, ...], int], FullyShard]] = {
    "fsdp2_kept": lambda units, ranks: FullyShard(
        units, ranks, tuple(unit not in units[-2:] for unit in units)
    ),
    "fsdp2_merged": lambda units, ranks: FullyShard((units[:2], units[2:]), ranks),
    "fsdp2_one_unit": lambda units, ranks: FullyShard((units,), ranks),
    "fsdp2_prefetch": lambda units, ranks: FullyShard(units, ranks, True, 3, 3),
    "fsdp2_bf16": FullyShard,
    "fsdp2_computed_in_bf16": lambda units, ranks: FullyShard(units, ranks, param_dtype="bf16"),
    "fsdp2_within_nodes": lambda units, ranks: FullyShard(units, ranks, 2),
}
"""Choices of torch's `fully_shard` from the modules that one would wrap by hand, three or more, and
the ranks: the last two units keep their values, two units or one in all, three units gathered
ahead, gradients reduced in bf16, values gathered and computed with in bf16, values in parts over
two ranks from forward to backward."""
HYBRID = ("hsdp", "hsdp_zero2", "fsdp2_within_nodes")
"""On two nodes of two ranks each."""
STEP = "measured step"
COLLECTIVE = "c10d::"
"""Begins the names of torch's collectives."""
STATE_TENSORS = {"sgd": 0, "adamw": 2}


def main() -> None:
    parser = gpu_options(__doc__, "cpu", "gloo")
    parser.add_argument("--alone", nargs="*", default=list(MODELS), metavar="MODEL:BATCH")
    parser.add_argument("--strategies", default="bert_3l:8", metavar="MODEL:BATCH")
    known = (*NAMES, *SHARDINGS, *HYBRID)
    parser.add_argument(
        "--designs", nargs="*", choices=known, metavar="NAME", help="these strategies alone"
    )
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--optimizer", default="adamw", choices=tuple(STATE_TENSORS))
    options = parser.parse_args()
    print(f"{'':32}{'measured MB':>12}{'predicted MB':>13}{'error':>8}")
    facts = machine_facts()
    table = Table(options.json, {"device": options.device, "machine": facts})
    device_type = device_type_of_gpu(facts["gpu"]) if options.device == "cuda" else "cpu"
    placed = partial(domain_of, backend=options.backend, device_type=device_type)
    for named in options.alone:
        model, batch = named.split(":")
        domain = placed(model, int(batch), options.optimizer)
        table.add(named, measured(domain, None, options.device)[0], predicted_alone(domain))
    model, batch = options.strategies.split(":")
    of_two = [name for name in (*NAMES, *SHARDINGS) if name not in HYBRID]
    for designs, ranks in ((of_two, 1), (HYBRID, 2)):
        of_one = placed(model, int(batch), options.optimizer, ranks)
        domain = replace(of_one, accumulate=options.accumulate)
        for name in designs:
            if options.designs is not None and name not in options.designs:
                continue
            strategy = built(name, domain)
            found = measured(domain, strategy, options.device)
            pairs = zip(found, predicted_on(domain, strategy), strict=True)
            for rank, both in enumerate(pairs):
                table.add(f"{options.strategies} {name}, rank {rank}", *both)


def built(name: str, domain: Domain) -> Strategy:
    if name not in SHARDINGS:
        return (DESIGNS | TORCH_DESIGNS)[name](domain)
    encoding = Encoding("bf16" if name == "fsdp2_bf16" else "none")
    engine = SHARDINGS[name](held_units(domain), domain.world_size)
    return sharded_by(domain, engine, encoding)


class Table:
    """Printed row by row, and written to a file, too."""

    def __init__(self, file: Path | None, facts: dict[str, Any]) -> None:
        self.file = file
        self.content: dict[str, Any] = {**facts, "rows": []}

    def add(self, name: str, measured: float, predicted: float) -> None:
        error = predicted / measured - 1
        print(f"{name:32}{measured / 1e6:12.1f}{predicted / 1e6:13.1f}{error:+8.1%}", flush=True)
        row = {"name": name, "measured_bytes": measured, "predicted_bytes": predicted}
        self.content["rows"].append(row)
        write_json(self.file, self.content)


def measured(domain: Domain, strategy: Strategy | None, device: str) -> list[int]:
    """Bytes at the peak of a step, of each rank; of the model alone without a strategy."""
    bundle = None if strategy is None else make_bundle(strategy, domain)
    ranks = 1 if bundle is None else domain.world_size
    return on_ranks(ranks, device, domain.cluster.backend, peak_bytes, domain, bundle)


def peak_bytes(
    rank: int, world: int, device: torch.device, domain: Domain, bundle: Bundle | None
) -> int:
    """The most that tensors hold of the device's memory in a step of this rank."""
    os.environ["AUTOSYNC_HOST"] = f"host{domain.cluster.node_of_server()[rank]}"
    on_gpu, groups = device.type == "cuda", ReusedGroups()
    if bundle is None:
        torch.set_num_threads(usable_cores())  # a model alone has all of them
    recording: Any = nullcontext()
    if not on_gpu:
        recording = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording as profiled:
        job = Job(domain, device)
        attached = TrialAttachment(job.model, lambda: None, lambda: None)
        if bundle is not None:
            attached = attached_to(job, bundle, groups)
        for _ in range(1 if bundle is None else 2):  # DDP cuts its buckets anew after the first
            job.step(attached.model)
        if on_gpu:
            attached.flush()
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        with record_function(STEP):
            job.step(attached.model)
            attached.flush()
        if on_gpu:
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        held = blocks_of_tensors()
        attached.detach()
    groups.close()
    return peak if on_gpu else peak_in_step(profiled, held)


def domain_of(
    model: str,
    batch: int,
    optimizer: str,
    ranks_per_node: int = 1,
    backend: BackendName = "gloo",
    device_type: str = "cpu",
) -> Domain:
    """Two nodes, so that strategies can be made; alone, one of their devices is looked at."""
    graph = bundled(model, batch)
    devices = (Device(device_type, ranks_per_node),)
    nodes = tuple(Node(f"127.0.0.{i + 1}", devices, 10.0, 20.0) for i in range(2))
    kind = Optimizer(optimizer, True, STATE_TENSORS[optimizer])
    cluster = Cluster("two", nodes, backend=backend)
    return Domain(graph, cluster, estimate_profile(graph, device_type), kind)


def predicted_on(domain: Domain, strategy: Strategy) -> list[float]:
    population = encode([strategy], domain)
    plans = compile_plans_fast(population, domain)
    peaks: list[float] = memory_of(domain).peak_bytes(plans, population)[0].tolist()
    return peaks


def predicted_alone(domain: Domain) -> float:
    """Torch's DDP without its buckets."""
    return predicted_on(domain, DESIGNS["ddp"](domain))[0] - domain.graph.size_bytes


def optimizer_for(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters())
    return torch.optim.SGD(model.parameters(), 1e-4)


class Job:
    def __init__(self, domain: Domain, device: torch.device | None = None) -> None:
        torch.manual_seed(0)
        self.model, self.inputs, self.loss = build(domain.graph.name, domain.batch_size)
        if device is not None:
            self.model.to(device)
            self.inputs = moved_examples(self.inputs, device)
        self.optimizer = optimizer_for(self.model, domain.optimizer.name)
        self.accumulate = domain.accumulate

    def step(self, model: nn.Module) -> None:
        self.optimizer.zero_grad()
        for _ in range(self.accumulate - 1):
            with model.no_sync():  # type: ignore[operator]  # of every attached model
                self._loss(model).backward()
        self._loss(model).backward()
        self.optimizer.step()

    def _loss(self, model: nn.Module) -> Any:
        args, keywords = module_arguments(self.model, self.inputs, self.loss)  # not DDP's own
        return loss_of(model(*args, **keywords), self.inputs, self.loss)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Or the end of one, where size_bytes is negative. in_collective: made by a collective itself,
    as gloo's copy of what a reduce-scatter is given."""

    moment_ns: int
    address: int
    size_bytes: int
    in_collective: bool = False


def blocks_of_tensors() -> dict[int, int]:
    """Bytes of what tensors hold now, by address. Late updates run on a thread that no profile
    sees, and make the optimizer's state there."""
    storages = [
        each.untyped_storage()
        for each in gc.get_objects()
        if type(each) in (torch.Tensor, nn.Parameter) and each.layout is torch.strided
    ]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def peak_in_step(profiled: Any, held: Mapping[int, int] | None = None) -> int:
    """The most that the allocator held within the measured step, whose model was built within the
    profile. held: `blocks_of_tensors` after the step; those that the profile has not seen count
    for the whole of it."""
    waiting = [(e, False) for e in profiled.profiler.kineto_results.experimental_event_tree()]
    found: list[Allocation] = []
    span = (0, 0)
    while waiting:
        event, in_collective = waiting.pop()
        in_collective = in_collective or event.name.startswith(COLLECTIVE)
        waiting += [(child, in_collective) for child in event.children]
        if event.name == STEP:
            span = (event.start_time_ns, event.end_time_ns)
        fields = event.extra_fields
        if hasattr(fields, "total_allocated") and str(fields.device) == "cpu":
            size_bytes = fields.alloc_size
            found.append(Allocation(event.start_time_ns, fields.ptr, size_bytes, in_collective))
    found.sort(key=lambda each: each.moment_ns)
    seen = {each.address for each in found}
    unseen = sum(size for address, size in (held or {}).items() if address not in seen)
    return most_held(found, *span) + unseen


def most_held(allocations: Sequence[Allocation], begin_ns: int, end_ns: int) -> int:
    """The most bytes held at a moment of a span.

    A profile does not see what gloo's own threads free, and its running total keeps that for good.
    So blocks are followed by their addresses: one ends at the latest where another begins in it,
    and what a collective made before the span ends with the collective, at its beginning at the
    latest.
    """
    sizes: dict[int, int] = {}
    addresses: list[int] = []  # of `sizes`, sorted
    of_collectives: set[int] = set()
    held = most = 0
    for each in allocations:
        ended = [each.address] if each.size_bytes < 0 else _overlapped(each, sizes, addresses)
        if each.moment_ns >= begin_ns:
            ended += of_collectives
            of_collectives.clear()
        for address in ended:
            of_collectives.discard(address)
            if address in sizes:
                held -= sizes.pop(address)
                addresses.remove(address)
        if each.size_bytes > 0:
            sizes[each.address] = each.size_bytes
            insort(addresses, each.address)
            held += each.size_bytes
            if each.in_collective and each.moment_ns < begin_ns:
                of_collectives.add(each.address)
        if begin_ns <= each.moment_ns <= end_ns:
            most = max(most, held)
    return most


def _overlapped(new: Allocation, sizes: dict[int, int], addresses: list[int]) -> list[int]:
    """Addresses of blocks in whose place a new one lies."""
    first = bisect_left(addresses, new.address)
    last = bisect_left(addresses, new.address + new.size_bytes)
    before = addresses[max(0, first - 1) : first]
    return [a for a in before if a + sizes[a] > new.address] + addresses[first:last]


def attached_to(job: Job, bundle: Bundle, groups: ReusedGroups) -> TrialAttachment:
    """As in a trial, but for `fully_shard`, of which a trial makes a copy of the model."""
    if bundle.plan.sharding is None:
        return attach(job.model, job.optimizer, bundle, 1.0, groups)
    autosync.distribute(job.model, job.optimizer, bundle, allow_lossy=True)
    return TrialAttachment(job.model, lambda: None, lambda: None)


if __name__ == "__main__":
    main()
