"""Regions of a compiled model, of several sizes, beside torch's DDP: seconds an iteration on two
gloo ranks of this machine.

python -m benchmarks.runtime.compiled_regions [--rounds 15]

DDP trains the model eager, and compiled in each way that torch has (`compiled_ddp`): as one region,
by DDPOptimizer, by compiled autograd. Plans have buckets of the same bytes. The ways take turns in
every round; the spread is the middle half of the rounds' ratios to eager DDP. Links are loopback:
there is little to hide, so what is shown is what the compiler gains and what cutting costs.
"""

import statistics
import time
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from autosync.bundle import Bundle, make_bundle
from autosync.extensions.compilation.document import CompiledRegions
from autosync.runtime.distributed import detach, distribute
from autosync.search.designs.known_designs import all_reduce_fused
from autosync.trials.session import TrialAttachment
from autosync.units import MIB
from benchmarks.gpu.ranks import on_ranks
from benchmarks.output import in_turn, option_parser
from benchmarks.runtime.compiled_ddp import Training, compiled_trainings, not_attached
from tests.autosync.runtime.cases import domain

BATCH, WORDS = 4, 32
BLOCKS, WIDTH = 8, 512
BUCKETS = 4
ITERATIONS = 5
COMPILING = 3
"""Iterations before the first round, in which the compiler works."""

EAGER_DDP = "DDP, eager"


class Block(nn.Module):
    """As one of a transformer, with pointwise operations that a compiler fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.norm(x)))) * 0.5
        return out


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


REGION_SIZES = (1, 2, 4, BLOCKS)


def shipped(model: nn.Module, size: int) -> Bundle:
    """A plan of fused all-reduces; size: blocks of a region, 0 for an eager model."""
    where = domain(model, dist.get_world_size())
    strategy = all_reduce_fused(where, where.graph.size_bytes // BUCKETS)
    if size:
        names = [f"blocks.{place}" for place in range(BLOCKS)]
        regions = tuple(tuple(names[at : at + size]) for at in range(0, BLOCKS, size))
        strategy = strategy.carrying(CompiledRegions(regions))
    return make_bundle(strategy, where)


def distributed(network: nn.Module) -> TrialAttachment:
    def let_go() -> None:
        detach(network)

    return TrialAttachment(network, let_go, let_go)


def trainings(inputs: Tensor) -> tuple[dict[str, Training], list[str]]:
    """Of each way after its first iterations, and what is left out and why."""

    def loss(network: nn.Module) -> Tensor:
        value: Tensor = network(inputs).square().mean()
        return value

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Blocks()
        return model, torch.optim.SGD(model.parameters(), 1e-3, foreach=True)

    def in_ddp(model: nn.Module) -> DistributedDataParallel:
        size_bytes = sum(parameter.nbytes for parameter in model.parameters())
        limit = max(1.0, size_bytes / BUCKETS / MIB)  # DDPOptimizer's first bucket has 1 MiB
        return DistributedDataParallel(model, bucket_cap_mb=limit, gradient_as_bucket_view=True)

    def plain(attached: TrialAttachment, optimizer: torch.optim.Optimizer) -> Training:
        training = Training(attached, optimizer, lambda: loss(attached.model).backward())
        training.train(COMPILING)
        return training

    model, optimizer = made()
    found = {EAGER_DDP: plain(not_attached(in_ddp(model)), optimizer)}
    compiled, left_out = compiled_trainings(made, in_ddp, loss, COMPILING)
    found |= compiled
    for size in (0, *REGION_SIZES):
        model, optimizer = made()
        network, optimizer = distribute(model, optimizer, shipped(model, size))
        name = f"plan, regions of {size}" if size else "plan, eager"
        found[name] = plain(distributed(network), optimizer)
    return found, [f"{name}: {why}" for name, why in left_out.items()]


def measure(
    rank: int, world: int, device: torch.device, rounds: int
) -> tuple[dict[str, list[float]], list[str]]:
    """Milliseconds an iteration of each way and round, and what is left out and why."""
    warnings.simplefilter("ignore")  # the compiler's own
    inputs = torch.randn(BATCH, WORDS, WIDTH, device=device)
    made, left_out = trainings(inputs)
    found: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds):
        for name in in_turn(list(made), number):
            dist.barrier()
            begun = time.perf_counter()
            made[name].train(ITERATIONS)
            found[name].append(1e3 * (time.perf_counter() - begun) / ITERATIONS)
    for training in made.values():
        training.attached.detach()
    return found, left_out


def report(found: dict[str, list[float]], left_out: list[str]) -> None:
    print(f"{'':24}{'ms':>8}{'/ eager DDP':>13}{'middle half':>16}")
    for name, milliseconds in found.items():
        ratios = [a / b for a, b in zip(milliseconds, found[EAGER_DDP], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        span = f"{low:.2f} to {high:.2f}"
        print(f"{name:24}{statistics.median(milliseconds):8.2f}{middle:13.2f}{span:>16}")
    for line in left_out:
        print(f"left out: {line}")


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    measured = on_ranks(2, "cpu", "gloo", measure, given.rounds)
    print(f"{BLOCKS} blocks of width {WIDTH}, two ranks, torch {torch.__version__}")
    report(*measured[0])


if __name__ == "__main__":
    main()
