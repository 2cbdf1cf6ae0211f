"""A small real model on two ranks of two speeds behind two bandwidths: plain replicas, proportional
ones, and a placement, measured and predicted.

python -m benchmarks.placement.measured_placement

Ranks are processes in network namespaces with shaped links. Values, gradients and messages are real
ones; ranks sleep in place of computing, so many seconds a sample and layer, times the rank's
slowdown. A rank's samples are as many as its share. Rounds are interleaved; a figure is the median
round of the slowest rank's median iteration, with the least and the most of the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore

import autosync
from autosync.bundle import load_bundle, make_bundle, save_bundle
from autosync.cluster import Cluster, Device, Node
from autosync.domain import Domain, Optimizer, Profile
from autosync.extensions.placement.document import modules_of
from autosync.extensions.placement.proposals import PlacementEvaluator, place_greedily
from autosync.importing import import_module
from autosync.population import encode
from autosync.search.designs import known_designs
from autosync.search.domain_facts import replica_layouts
from autosync.search.space import Space
from autosync.simulator.timeline.timeline_simulator import TimelineSimulator
from autosync.strategy import Strategy
from autosync.trials.testbed import namespaces
from benchmarks.output import option_parser, print_head, print_row

WIDTH, WIDE, LAYERS = 128, 4096, 4
BATCH = 16
"""Of a replica at an even share."""
LAYER_SECONDS = 0.4e-3
"""Forward, of one sample and layer, on a rank of no slowdown; twice that backward."""
SLOWDOWNS = (1.0, 3.0)
GBPS = (0.4, 0.2)
WARMUP, ITERATIONS, ROUNDS = 3, 20, 3
ROOT = Path(__file__).parents[2]


class Waited(torch.autograd.Function):
    """Takes as long as a device of the rank's speed would, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds * len(x)
        time.sleep(ctx.seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient, None


class TimedLinear(nn.Module):
    def __init__(self, into: int, out_of: int) -> None:
        super().__init__()
        self.linear = nn.Linear(into, out_of)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(x)
        slowdown = float(os.environ.get("SLOWDOWN", "0"))
        return Waited.apply(made, slowdown * LAYER_SECONDS) if slowdown else made  # type: ignore[no-untyped-call]


class Network(nn.Module):
    """Narrow layers that take most of the compute, and a wide head that holds most of the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(TimedLinear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Sequential(TimedLinear(WIDTH, WIDE), nn.ReLU(), TimedLinear(WIDE, WIDTH))
        self.last = TimedLinear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = torch.relu(layer(x))
        out: Tensor = self.last(self.head(x))
        return out


def network() -> nn.Module:
    torch.manual_seed(0)
    return Network()


def loss(out: Tensor, x: Tensor) -> Tensor:
    return (out.sum(1) - x.sum(1)).square().mean()


def domain() -> Domain:
    nodes = tuple(
        Node(f"10.77.0.{i + 1}", (Device("cpu", slowdown=slowdown),), gbps, 50.0)
        for i, (slowdown, gbps) in enumerate(zip(SLOWDOWNS, GBPS, strict=True))
    )
    example = (torch.zeros(BATCH, WIDTH),)
    graph = import_module(network, example, loss, name="wide_head", batch_size=BATCH)
    forward = tuple(BATCH * LAYER_SECONDS * bool(each.variables) for each in graph.operations)
    profile = Profile(
        "cpu",
        BATCH,
        forward,
        tuple(2 * seconds for seconds in forward),
        0.0,
        "estimated",
        "as this benchmark waits",
    )
    return Domain(graph, Cluster("two-speeds", nodes), profile, Optimizer("sgd"))


def strategies_of(where: Domain) -> dict[str, Strategy]:
    """By name."""
    even = known_designs.all_reduce_5mb(where)
    layouts = replica_layouts(where, Space(uneven_shares=True))
    fair = replace(even, replicas=layouts[-1])
    evaluator = PlacementEvaluator(where, TimelineSimulator())
    return {
        "even": even,
        "proportional": fair,
        "even, placed": place_greedily(evaluator, even).strategy,
        "proportional, placed": place_greedily(evaluator, fair).strategy,
    }


def run_rank(rank: int, folder: Path) -> None:
    """Prints seconds of each iteration, as JSON."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "eth0", "AUTOSYNC_HOST": f"host{rank}"}
    os.environ["SLOWDOWN"] = str(SLOWDOWNS[rank])
    torch.set_num_threads(1)
    store = TCPStore("10.77.0.1", 29500, len(SLOWDOWNS), rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(SLOWDOWNS))
    shipped = load_bundle(folder / "bundle.json")
    model = network()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = autosync.distribute(model, optimizer, shipped)
    rows = round(shipped.plan.shares[rank] * BATCH * len(SLOWDOWNS))
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(WARMUP + ITERATIONS):
        x = torch.randn(rows, WIDTH, generator=generator)
        started = time.monotonic()
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()
        seconds.append(time.monotonic() - started)
    held = sum(parameter.numel() for parameter in model.parameters())
    autosync.detach(model)
    dist.barrier()
    print(json.dumps({"seconds": seconds[WARMUP:], "elements": held}), flush=True)
    dist.destroy_process_group()


def measured(
    prefix: Callable[[int], tuple[str, ...]], strategy: Strategy, where: Domain
) -> tuple[float, list[int]]:
    """The median iteration of the slowest rank, and the elements that each rank holds."""
    with tempfile.TemporaryDirectory() as folder:
        save_bundle(make_bundle(strategy, where), Path(folder) / "bundle.json")
        command = [sys.executable, "-m", "benchmarks.placement.measured_placement"]
        command += ["--folder", folder]
        ranks = [
            subprocess.Popen(
                [*prefix(rank), *command, "--rank", str(rank)],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},  # a namespace has its own folder
            )
            for rank in range(len(SLOWDOWNS))
        ]
        answers = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    return max(median(each["seconds"]) for each in answers), [each["elements"] for each in answers]


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        run_rank(given.rank, given.folder)
        return
    where = domain()
    strategies = strategies_of(where)
    predicted = TimelineSimulator().predict(where, encode(list(strategies.values()), where))
    testbed = namespaces.up(where.cluster)
    found: dict[str, list[float]] = {name: [] for name in strategies}
    elements: dict[str, list[int]] = {}
    try:
        for _ in range(ROUNDS):
            for name, strategy in strategies.items():
                seconds, elements[name] = measured(testbed.prefix, strategy, where)
                found[name].append(seconds)
    finally:
        namespaces.down(testbed)
    print_head("", "measured ms", "predicted ms", "elements held")
    for (name, seconds_of), prediction in zip(found.items(), predicted, strict=True):
        low, middle, high = (1e3 * f(seconds_of) for f in (min, median, max))
        held = ", ".join(f"{each:,}" for each in elements[name])
        placed = " ".join(f"{each.module}@{each.ranks}" for each in modules_of(strategies[name]))
        spread = f"{middle:.1f} ({low:.1f} to {high:.1f})"
        print_row(f"{name} {placed}", spread, f"{prediction * 1e3:.1f}", held)


if __name__ == "__main__":
    main()
