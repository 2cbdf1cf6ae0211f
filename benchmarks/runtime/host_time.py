"""What synchronization costs the host: microseconds a parameter and a message, beside torch's DDP.

python -m benchmarks.runtime.host_time [--device cuda] [--ranks N] [--repeats N]

A model of many small parameters, so that neither their arithmetic nor their bytes count, trained
under a plan of DDP's own buckets, under DDP (`gradient_as_bucket_view` both ways) and by nobody.
Printed is the CPU time of an iteration over that without synchronization: of the main thread, and
of the whole process. The ways take turns in every repeat; the spread is the middle half of the
repeats. On a GPU NCCL carries the messages, and several ranks share it.
"""

import os
import statistics
import time
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.plan import compile_plans, plan_of
from autosync.population import encode
from autosync.runtime.attachment import attach, attachment_of
from autosync.search.designs.known_designs import all_reduce_fused
from autosync.trials.request_names import BackendName
from autosync.units import MIB
from benchmarks.gpu.ranks import on_ranks
from benchmarks.output import option_parser
from tests.autosync.runtime.cases import domain

PARAMETERS = (161, 400)
BUCKETS = 5
"""Messages of an iteration: as many as ResNet-50 has under DDP."""
WIDTH = 16
ITERATIONS = 12
WAYS = ("alone", "DDP", "DDP, views", "plan")


class Many(nn.Module):
    """`count` vectors that multiply their input one after another."""

    def __init__(self, count: int):
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one iteration: of the main thread, and of the whole process."""

    thread_seconds: float
    process_seconds: float


def made(way: str, count: int, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A fresh model under one of WAYS."""
    model = Many(count).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=True)
    bucket_bytes = count * WIDTH * 4 // BUCKETS
    if way.startswith("DDP"):
        views, mebibytes = way.endswith("views"), bucket_bytes / MIB
        network = DistributedDataParallel(
            model, bucket_cap_mb=mebibytes, gradient_as_bucket_view=views
        )
        return network, optimizer
    if way == "plan":
        where = domain(model, dist.get_world_size())
        strategies = encode([all_reduce_fused(where, bucket_bytes)], where)
        plan = plan_of(compile_plans(strategies, where), strategies, 0, where)
        attach(model, optimizer, plan, tuple(name for name, _ in model.named_parameters()))
    return model, optimizer


def cost_of(network: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> Cost:
    thread, process = time.thread_time(), time.process_time()
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        network(inputs).sum().backward()
        optimizer.step()
    if inputs.is_cuda:
        torch.cuda.synchronize()
    return Cost(
        (time.thread_time() - thread) / ITERATIONS, (time.process_time() - process) / ITERATIONS
    )


def measure(
    rank: int, world: int, device: torch.device, repeats: int
) -> dict[int, dict[str, list[Cost]]]:
    """By the number of parameters and the way."""
    warnings.simplefilter("ignore")
    os.environ.pop("AUTOSYNC_HOST", None)  # the ranks are of one host
    return {count: costs_of(device, count, repeats) for count in PARAMETERS}


def costs_of(device: torch.device, count: int, repeats: int) -> dict[str, list[Cost]]:
    networks = {way: made(way, count, device) for way in WAYS}
    inputs = torch.ones(1, WIDTH, device=device)
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for repeat in range(repeats + 1):
        for way in WAYS:
            dist.barrier()
            cost = cost_of(*networks[way], inputs)
            if repeat:  # the first warms up
                found[way].append(cost)
    plan = attachment_of(networks["plan"][0])
    assert plan is not None
    plan.detach()
    return found


def report(count: int, found: dict[str, list[Cost]]) -> None:
    print(f"\n{count} parameters, {BUCKETS} messages; microseconds of CPU time beside none at all")
    print(
        f"{'':12}{'main thread':>12}{'quartiles':>16}{'a parameter':>12}{'process':>10}{'/ DDP':>8}"
    )
    of_ddp = 0.0
    for way in WAYS[1:]:
        pairs = list(zip(found[way], found[WAYS[0]], strict=True))
        thread = [1e6 * (a.thread_seconds - b.thread_seconds) for a, b in pairs]
        process = [1e6 * (a.process_seconds - b.process_seconds) for a, b in pairs]
        low, mid, high = statistics.quantiles(thread, n=4)
        of_ddp = of_ddp or mid
        print(
            f"{way:12}{mid:12.0f}{f'{low:.0f} to {high:.0f}':>16}{mid / count:12.2f}"
            f"{statistics.median(process):10.0f}{mid / of_ddp:8.2f}"
        )


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    backend: BackendName = "nccl" if given.device == "cuda" else "gloo"
    for found in on_ranks(given.ranks, given.device, backend, measure, given.repeats)[0].items():
        report(*found)


if __name__ == "__main__":
    main()
