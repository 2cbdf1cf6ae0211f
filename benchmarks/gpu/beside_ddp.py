"""The runtime beside torch's DDP, with DDP's own buckets: real models, whole training steps.

    python -m benchmarks.gpu.beside_ddp [MODEL:BATCH ...] [--ranks 1 2] [--device cuda]
        [--backend nccl] [--compiled SECONDS] [--rounds N] [--iterations N] [--json FILE]

`--compiled` adds DDP as torch.compile trains it (`benchmarks.runtime.compiled_ddp`); what is not
begun to be compiled within these seconds is left out. Every way has a model of its own; they take
turns in rounds. `host` is how long the script's thread takes to ask for an iteration, the device
being idle before it; `processor` is the time of all threads of the process until it is done, and
`device` the GPU's own; `step` is the period of iterations that follow one another. Where ranks
share a GPU, `step` is that of a GPU which computes for all of them.
"""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autosync.bundle import Bundle, make_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain
from autosync.importing.several_examples import moved_examples
from autosync.importing.training_step import loss_of, module_arguments
from autosync.models import bundled
from autosync.plan import Plan
from autosync.profiling import estimate_profile
from autosync.runtime.attachment import attachment_of
from autosync.runtime.torch_engines import wrap_in_ddp
from autosync.search.designs import known_designs
from autosync.strategy import Schedule, Strategy
from autosync.trials.request_names import BackendName
from autosync.trials.session import ReusedGroups, TrialAttachment, attach
from benchmarks.gpu.ranks import gpu_options, machine_facts, on_ranks, sharing_of
from benchmarks.models import build
from benchmarks.output import in_turn, write_json
from benchmarks.runtime.compiled_ddp import Training, compiled_trainings, not_attached

MODELS = ("resnet50:32", "bert_3l:8")
RUNTIME = "runtime, DDP's buckets"
WARMUP = 3
"""Iterations before the first round."""


@dataclass(frozen=True, slots=True)
class WayFigures:
    """Medians over rounds, of rank 0. ratio: the median of the rounds' own ratios of `step` to
    that of torch's DDP, ratio_low and ratio_high their range; host_over_alone_ms: what a way costs
    the host beyond no synchronization; device_ms: None in host memory. bucket_bytes: of what
    travels in one message, sorted; empty where DDP is compiled, or nothing travels."""

    model: str
    ranks: int
    sharing: str
    way: str
    host_ms: float
    host_over_alone_ms: float
    processor_ms: float
    device_ms: float | None
    step_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    parameters: int
    bucket_bytes: list[int]


def two_nodes(model: str, batch: int, backend: BackendName) -> Domain:
    graph = bundled(model, batch)
    nodes = tuple(Node(f"127.0.0.{i + 1}", (Device("cpu", 1),), 10.0, 20.0) for i in range(2))
    return Domain(graph, Cluster("two", nodes, backend=backend), estimate_profile(graph, "cpu"))


def own_buckets(domain: Domain) -> Strategy:
    """DDP's own buckets, one message each, synchronized by the runtime."""
    return replace(known_designs.ddp(domain), schedule=Schedule("fifo"))


def for_ranks(bundle: Bundle, world: int) -> Bundle:
    """A bundle for two; where there is one rank, every message has a team of one."""
    return bundle if world == 2 else replace(bundle, plan=for_one(bundle.plan))


def for_one(plan: Plan) -> Plan:
    messages = tuple(replace(message, root=min(message.root, 0)) for message in plan.messages)
    return replace(plan, shares=(1.0,), teams=(((0,),),) * len(plan.teams), messages=messages)


@dataclass(frozen=True, slots=True)
class Round:
    """Of one way: milliseconds."""

    host_ms: float
    processor_ms: float
    device_ms: float | None
    step_ms: float


def measured_ways(
    rank: int,
    world: int,
    device: torch.device,
    named: str,
    backend: BackendName,
    rounds: int,
    iterations: int,
    compile_seconds: float | None,
) -> tuple[dict[str, list[Round]], dict[str, list[int]], dict[str, str]]:
    """Of each way, what travels together (see `WayFigures`), and why other ways are left out.
    compile_seconds: None where nothing is compiled."""
    model, batch = named.split(":")
    domain = two_nodes(model, int(batch), backend)
    torch.manual_seed(0)
    module, inputs, loss = build(model, int(batch))
    module.to(device)
    inputs = moved_examples(inputs, device)
    args, keywords = module_arguments(module, inputs, loss)

    def loss_on(network: nn.Module) -> torch.Tensor:
        value: torch.Tensor = loss_of(network(*args, **keywords), inputs, loss)
        return value

    def copied() -> tuple[nn.Module, torch.optim.Optimizer]:
        network = copy.deepcopy(module)
        return network, torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9)

    groups = ReusedGroups()
    trainings = {}
    ways = ("alone", None), ("DDP", known_designs.ddp(domain)), (RUNTIME, own_buckets(domain))
    for name, strategy in ways:
        network, optimizer = copied()
        attached = not_attached(network)
        if strategy is not None:
            bundle = for_ranks(make_bundle(strategy, domain), world)
            attached = attach(network, optimizer, bundle, 1.0, groups)
        eager = partial(eager_passes, attached, loss_on)
        trainings[name] = Training(attached, optimizer, eager)
        trainings[name].train(WARMUP)
    left_out: dict[str, str] = {}
    if compile_seconds is not None:
        until = time.monotonic() + compile_seconds
        compiled, left_out = compiled_trainings(
            *(copied, wrap_in_ddp, loss_on, WARMUP),
            lambda: said_by_first(time.monotonic() < until, device),
        )
        trainings |= compiled
    found: dict[str, list[Round]] = {name: [] for name in trainings}
    for turn in range(rounds):
        for name in in_turn(list(trainings), turn):
            found[name].append(one_round(trainings[name], device, iterations))
    formed = {name: bucket_bytes(each) for name, each in trainings.items()}
    for each in trainings.values():
        each.attached.detach()
    groups.close()
    return found, formed, left_out


def said_by_first(value: bool, device: torch.device) -> bool:
    """What rank 0 says."""
    said = torch.tensor([float(value)], device=device)
    dist.broadcast(said, 0)
    return bool(said.item())


def bucket_bytes(training: Training) -> list[int]:
    network = training.attached.model
    if isinstance(network, DistributedDataParallel):
        told: dict[str, Any] = network._get_ddp_logging_data()
        sizes = str(told.get("rebuilt_bucket_sizes", ""))  # of DDP's own Reducer
        return sorted(int(each) for each in sizes.split(",") if each.strip())
    if (attachment := attachment_of(network)) is None:
        return []
    return sorted(each.size * each.buffer.element_size() for each in attachment.engine.buckets)


def eager_passes(attached: TrialAttachment, loss: Callable[[nn.Module], torch.Tensor]) -> None:
    loss(attached.model).backward()


def one_round(training: Training, device: torch.device, iterations: int) -> Round:
    """iterations: that follow one another; half as many begin with the device idle."""
    hosts, processors, devices = [], [], []
    for _ in range(iterations // 2):
        finish(training, device)
        first, spent, begun = mark(device), time.process_time(), time.perf_counter()
        training.train()
        hosts.append(time.perf_counter() - begun)
        training.attached.flush()
        last = mark(device)
        finish(training, device)
        processors.append(time.process_time() - spent)
        if first is not None and last is not None:
            devices.append(first.elapsed_time(last))
    begun = time.perf_counter()
    for _ in range(iterations):
        training.train()
    finish(training, device)
    return Round(
        host_ms=1e3 * statistics.median(hosts),
        processor_ms=1e3 * statistics.median(processors),
        device_ms=statistics.median(devices) if devices else None,
        step_ms=1e3 * (time.perf_counter() - begun) / iterations,
    )


def mark(device: torch.device) -> torch.cuda.Event | None:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def finish(training: Training, device: torch.device) -> None:
    training.attached.flush()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def figures(
    named: str,
    world: int,
    sharing: str,
    found: dict[str, list[Round]],
    formed: dict[str, list[int]],
) -> list[WayFigures]:
    parameters = len(bundled(named.split(":")[0], 1).variables)
    alone = statistics.median(each.host_ms for each in found["alone"])
    rows = []
    for way, rounds in found.items():
        host = statistics.median(each.host_ms for each in rounds)
        devices = [each.device_ms for each in rounds if each.device_ms is not None]
        pairs = zip(rounds, found["DDP"], strict=True)
        ratios = [mine.step_ms / theirs.step_ms for mine, theirs in pairs]
        rows.append(
            WayFigures(
                model=named,
                ranks=world,
                sharing=sharing,
                way=way,
                host_ms=host,
                host_over_alone_ms=host - alone,
                processor_ms=statistics.median(each.processor_ms for each in rounds),
                device_ms=statistics.median(devices) if devices else None,
                step_ms=statistics.median(each.step_ms for each in rounds),
                ratio=statistics.median(ratios),
                ratio_low=min(ratios),
                ratio_high=max(ratios),
                parameters=parameters,
                bucket_bytes=formed[way],
            )
        )
    return rows


def print_rows(rows: list[WayFigures]) -> None:
    for row in rows:
        on_device = "" if row.device_ms is None else f"device {row.device_ms:8.2f} ms, "
        print(
            f"{row.model}, {row.ranks} ranks{', ' + row.sharing if row.sharing else ''}: "
            f"{row.way:24} host {row.host_ms:8.2f} ms ({row.host_over_alone_ms:+.2f}), processor "
            f"{row.processor_ms:8.2f} ms, {on_device}step {row.step_ms:8.2f} ms, "
            f"{row.ratio:.3f} ({row.ratio_low:.3f} to {row.ratio_high:.3f}) of DDP's, "
            f"{len(row.bucket_bytes)} buckets",
            flush=True,
        )


def main() -> None:
    parser = gpu_options(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL:BATCH")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2], choices=(1, 2))
    parser.add_argument("--compiled", type=float, metavar="SECONDS", help="DDP compiled, too")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8, help="of a round, at least 2")
    options = parser.parse_args()
    written: dict[str, Any] = {
        "machine": machine_facts(),
        "backend": options.backend,
        "rows": [],
        "left_out": [],
    }
    for world in options.ranks:
        sharing = sharing_of(world, options.device)
        for named in options.models:
            given = (named, options.backend, options.rounds, options.iterations, options.compiled)
            answers = on_ranks(world, options.device, options.backend, measured_ways, *given)
            found, formed, left_out = answers[0]
            rows = figures(named, world, sharing, found, formed)
            print_rows(rows)
            for way, why in left_out.items():
                print(f"{named}, {world} ranks: left out: {way}: {why}", flush=True)
                left = {"model": named, "ranks": world, "way": way, "why": why}
                written["left_out"].append(left)
            written["rows"] += [asdict(row) for row in rows]
            write_json(options.json, written)


if __name__ == "__main__":
    main()
