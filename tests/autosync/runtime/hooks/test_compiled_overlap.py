"""Compiled blocks: their gradients travel while the backward pass of the blocks below runs."""

import copy
import time
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo.config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from autosync.errors import NotSupported
from autosync.extensions.compilation import attachment as compilation
from autosync.extensions.compilation.document import CompiledRegions
from autosync.runtime.execution.execution_trace import ExecutionTrace
from tests.autosync.runtime.cases import (
    Case,
    attached,
    iterate,
    loss_of,
    make_optimizer,
    worst_difference,
)
from tests.autosync.runtime.ranks import Ranks
from tests.autosync.runtime.training import OVERLAP
from tests.long_parameters import long_after

BACKENDS = long_after(1, ["aot_eager", "inductor"])
BLOCKS = 4
ITERATIONS = 3
PATIENCE_SECONDS = 60.0
SHARDED = Case(method="zero", groups=4, schedule=OVERLAP)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 24)
        self.narrow = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.narrow(torch.relu(self.wide(x)))
        return out


class Tower(nn.Module):
    """Blocks that the script may compile, each with a message of its own, and a head.

    between: called in the backward pass when the one of block `place` has ended and the one of the
    block below has not begun.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(blocks))
        self.head = nn.Linear(6, 3)
        self.between: Any = None

    def forward(self, x: Tensor) -> Tensor:
        for place, block in enumerate(self.blocks):
            if self.between is not None and x.requires_grad:
                x.register_hook(lambda _, place=place: self.between(place))
            x = block(x)
        out: Tensor = self.head(x)
        return out


def tower(blocks: int = BLOCKS) -> Tower:
    torch.manual_seed(5)
    return Tower(blocks)


def towers(rank: int) -> tuple[nn.Module, Tower, torch.optim.Optimizer]:
    """A tower that has been trained by torch's DDP without a compiler, and a new one with its
    optimizer. The compiler begins anew."""
    plain, model = tower(), tower()
    network = DistributedDataParallel(plain)
    iterate(network, make_optimizer("sgd", plain), rank, range(ITERATIONS))
    torch._dynamo.reset()
    counters.clear()
    return plain, model, make_optimizer("sgd", model)


def left_early(rank: int, world: int, backend: str) -> tuple[float, dict[int, int], int, int]:
    """The difference from torch's DDP of the eager model; by block, how many buckets had left this
    rank in the last iteration before the backward pass of the block below began; the graphs
    and the graph breaks."""
    plain, model, optimizer = towers(rank)
    case, trace = Case(groups=2 * (2 * BLOCKS + 1)), ExecutionTrace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        for block in model.blocks:
            block.compile(backend=backend, fullgraph=True)
        attachment = attached(case, world, trace, model=model, optimizer=optimizer)[2]
        iterate(model, optimizer, rank, range(ITERATIONS - 1))
        done, found = len(trace.events), {}

        def between(place: int) -> None:
            expected = 2 + 4 * (BLOCKS - place)  # of the head, and of the blocks so far
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(trace.events) - done < expected and time.monotonic() < deadline:
                time.sleep(0.001)
            found[place] = len({event.bucket for event in trace.events[done:]})

        model.between = between
        iterate(model, optimizer, rank, range(ITERATIONS - 1, ITERATIONS))
        attachment.detach()
    broken = sum(counters["graph_break"].values())
    return worst_difference(model, plain), found, counters["stats"]["unique_graphs"], broken


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_compiled_block_leave_when_its_backward_ends(
    pair: Ranks, backend: str
) -> None:
    """Each rank holds its backward pass between two blocks until the messages of those above have
    arrived; they would not, if they waited for the end of the pass."""
    for worst, early, graphs, broken in pair.run(left_early, backend):
        assert worst < 2e-6
        assert early == {3: 6, 2: 10, 1: 14}
        assert graphs <= 2  # the input of the first block has no gradient
        assert broken == 0


def compiled_whole(rank: int, world: int, backend: str) -> tuple[float, int, int]:
    """The difference from torch's DDP of the eager model, the graphs and the graph breaks."""
    plain, model, optimizer = towers(rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        model.compile(backend=backend, fullgraph=True)
        attachment = attached(SHARDED, world, model=model, optimizer=optimizer)[2]
        iterate(model, optimizer, rank, range(ITERATIONS))
        attachment.detach()
    broken = sum(counters["graph_break"].values())
    return worst_difference(model, plain), counters["stats"]["unique_graphs"], broken


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_compiled_whole_is_one_graph(pair: Ranks, backend: str) -> None:
    for worst, graphs, broken in pair.run(compiled_whole, backend):
        assert worst < 2e-6
        assert (graphs, broken) == (1, 0)


REGIONS = CompiledRegions((("blocks.0", "blocks.1"), ("blocks.2", "blocks.3")))


def in_regions(rank: int, world: int, backend: str) -> tuple[float, list[list[int]], int, bool]:
    """The difference from torch's DDP of the eager model; the blocks (-1: the head) whose gradients
    got ready together, in order; the graph breaks; and whether the model is eager again."""
    plain, model, optimizer = towers(rank)
    ready: list[int] = []
    for name, parameter in model.named_parameters():
        block = -1 if name.startswith("head") else int(name.split(".")[1])
        parameter.register_post_accumulate_grad_hook(lambda _, block=block: ready.append(block))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        compilation.check(model, REGIONS, model)
        attachment = attached(SHARDED, world, model=model, optimizer=optimizer)[2]
        compiled = compilation.attach(model, REGIONS, [optimizer], backend)
        iterate(model, optimizer, rank, range(ITERATIONS - 1))
        ready.clear()
        iterate(model, optimizer, rank, range(ITERATIONS - 1, ITERATIONS))
        compiled.remove()
        attachment.detach()
    broken = sum(counters["graph_break"].values())
    half = len(ready) // 2 + 1  # the head has a weight and a bias
    together = [sorted(set(ready[:half])), sorted(set(ready[half:]))]
    return worst_difference(model, plain), together, broken, model._compiled_call_impl is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_is_compiled_in_the_regions_of_a_strategy(pair: Ranks, backend: str) -> None:
    for worst, together, broken, is_eager in pair.run(in_regions, backend):
        assert worst < 2e-6
        assert together == [[-1, 2, 3], [0, 1]]
        assert broken == 0
        assert is_eager


def test_a_region_of_another_model_and_a_compiled_model_are_refused() -> None:
    model, compiled = tower(), tower()
    compiled.blocks[0].compile(backend="eager")
    with pytest.raises(NotSupported, match=r"no module 'blocks\.9'"):
        compilation.check(model, CompiledRegions((("blocks.9",),)), model)
    with pytest.raises(NotSupported, match=r"blocks\.0 is compiled already"):
        compilation.check(compiled, REGIONS, compiled)
    two = nn.ModuleDict({"student": tower(), "teacher": tower()})
    with pytest.raises(NotSupported, match=r"'student\.blocks\.0' or 'teacher\.blocks\.0'"):
        compilation.check(two, REGIONS, two)


def test_more_regions_than_one_function_may_be_compiled_for() -> None:
    torch._dynamo.reset()
    model, names = tower(12), [f"blocks.{place}" for place in range(12)]
    entry = CompiledRegions(tuple((name,) for name in names))
    compiled = compilation.attach(model, entry, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        assert torch.isfinite(model(torch.ones(2, 6))).all()
    assert compiled.found == {*names}


def test_a_model_is_compiled_however_often_it_was_before() -> None:
    """As by the trials of a tuning; torch runs what it has compiled too often eagerly."""
    torch._dynamo.reset()
    model = tower()
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        for _ in range(4):
            compiled = compilation.attach(model, REGIONS, backend="eager")
            model(torch.ones(2, 6))
            compiled.remove()
            assert compiled.found == {"blocks.0", "blocks.2"}


def test_regions_may_be_named_as_a_wrapper_around_the_model_has_them() -> None:
    torch._dynamo.reset()
    entry = CompiledRegions((("net.blocks.0", "net.blocks.1"), ("net.blocks.2",)))
    model = tower()
    compilation.check(model, entry, model)
    compiled = compilation.attach(model, entry, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        model(torch.ones(2, 6))
    assert compiled.found == {"blocks.0", "blocks.2"}


def test_a_region_that_no_graph_contains_is_told_of() -> None:
    torch._dynamo.reset()
    model = tower()
    optimizer = make_optimizer("sgd", model)
    unused = CompiledRegions((("blocks.0",), ("blocks.1.wide",), ("blocks",)))
    compiled = compilation.attach(model, unused, [optimizer], backend="eager")
    with pytest.warns(UserWarning, match="no compiled graph contains blocks,"):
        iterate(model, optimizer, 0, range(ITERATIONS))
    compiled.remove()


def test_a_model_that_is_not_called_itself_is_told_of() -> None:
    """As a LightningModule whose training_step calls its parts."""
    model = tower()
    optimizer = make_optimizer("sgd", model)
    one = CompiledRegions((tuple(f"blocks.{place}" for place in range(BLOCKS)),))
    compiled = compilation.attach(model, one, [optimizer], backend="eager")
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()  # makes the state, as torch does before it loads a checkpoint
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    model.head(torch.ones(2, 6)).sum().backward()
    with pytest.warns(UserWarning, match=r"no compiled graph contains blocks\.0,"):
        optimizer.step()
    compiled.remove()


class Unusual(Tower):
    """Blocks that are checkpointed, or that run in another type."""

    checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.checkpointed):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        out: Tensor = self.head(x.float())
        return out


@pytest.mark.parametrize("checkpointed", [False, True])
def test_regions_cut_checkpointed_blocks_and_those_of_another_type(checkpointed: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(5)
    plain = Unusual(BLOCKS)
    plain.checkpointed = checkpointed
    model = copy.deepcopy(plain)
    compiled = compilation.attach(model, REGIONS, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        for each in (plain, model):
            loss_of(each, 0, 0).backward()
    assert compiled.found == {"blocks.0", "blocks.2"}
    for name, parameter in plain.named_parameters():
        gradient = model.get_parameter(name).grad
        assert torch.equal(gradient, parameter.grad), name  # type: ignore[arg-type]
