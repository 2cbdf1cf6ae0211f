"""A running job's step as a graph: what hooks on its modules record."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from autosync.documents import from_json, to_json
from autosync.errors import InvalidInput, InvalidStrategy
from autosync.extensions.offload.arena import Arena
from autosync.extensions.offload.attachment import attach as swap_to_host
from autosync.extensions.offload.document import RESERVE, Offload, budget_within
from autosync.extensions.offload.schedule import least_budget_bytes
from autosync.extensions.placement.document import evenly
from autosync.extensions.placement.module_borders import borders_of, module_of
from autosync.extensions.placement.placeable_modules import modules_to_place
from autosync.extensions.placement.verification import check_module
from autosync.graph import ModelGraph, Operation
from autosync.trials.live.job import ControlGroup, LiveJob
from autosync.trials.live.recorded_step import Call, Tape, assign_uncalled_variables, finish_order
from autosync.trials.live.snapshot import take_snapshot
from autosync.trials.live.step_graph import RecordedJob, record_job
from tests.domains import domain_of, grid_cluster

BATCH = 2


class Outer(nn.Module):
    """Owns a variable, and a module with variables that it calls twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.inner = nn.Linear(8, 8)
        self.narrow = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.inner(self.inner(x * self.scale))
        found: Tensor = torch.cat([self.narrow(scaled)] * 4, dim=1)
        return found


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(BATCH, 8)).sum().backward()
    optimizer.step()


def job_of(
    step: Any, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any
) -> LiveJob:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    control: ControlGroup = None  # type: ignore[assignment]  # recording asks nobody
    before = take_snapshot(model, [optimizer])
    return LiveJob(step, model, optimizer, before, control, timedelta(seconds=1), **options)


def recorded(model: nn.Module) -> ModelGraph:
    return record_job(job_of(step, model), None, "cpu").graph


def test_a_module_that_holds_others_has_its_own_output() -> None:
    graph = recorded(Outer())
    operations = graph.operations
    row_bytes = BATCH * 4
    assert [(each.type, each.output_bytes) for each in operations] == [
        ("outer", 12 * row_bytes),
        ("linear", 8 * row_bytes),
        ("linear", 8 * row_bytes),
        ("linear", 3 * row_bytes),
    ]
    assert [module_of(each) for each in operations] == ["", "inner", "inner", "narrow"]
    assert borders_of(graph, "inner").operations == (1, 2)
    assert borders_of(graph, "narrow").entering == ((2, 3),)


def test_a_step_in_eval_mode_is_warned_of() -> None:
    """As `from_pretrained` returns the model; a step may set the mode itself."""
    with pytest.warns(UserWarning, match="Outer is in eval mode"):
        recorded(Outer().eval())

    def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.train()
        step(model, optimizer)

    record_job(job_of(training_step, Outer().eval()), None, "cpu")


class Adapted(nn.Module):
    """All that trains runs in a reentrant checkpoint, as adapters in frozen blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.frozen(x).requires_grad_()
        found: Tensor = checkpoint(self.adapter, hidden, use_reentrant=True)
        return found


def test_a_module_in_a_reentrant_checkpoint_is_one_operation() -> None:
    (operation,) = recorded(Adapted()).operations
    assert (operation.name, operation.output_bytes) == ("adapter.linear", BATCH * 3 * 4)


class Taught(nn.Module):
    """Its own teacher, which runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)
        self.other = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.other(x) + self.inner(x)
        found: Tensor = self.inner(x) + 0 * self.other.weight.sum() + self.other.bias - target
        return found


def test_what_runs_without_gradients_in_a_training_forward_is_no_operation() -> None:
    (operation,) = recorded(Taught()).operations
    assert operation.name == "inner.linear"


class Containers(nn.Module):
    """A list of blocks and a table of heads, of which nobody calls the containers themselves; and
    an attention whose projection nobody calls, for it reads the values itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)
        )
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.heads = nn.ModuleDict({"wide": nn.Linear(8, 8), "narrow": nn.Linear(8, 3)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        x = x.unsqueeze(1)
        x = self.attention(x, x, x)[0].squeeze(1)
        out: Tensor = self.heads["narrow"](self.heads["wide"](x))
        return out


def test_modules_that_nobody_calls_are_known_and_not_proposed_for_placement() -> None:
    graph = recorded(Containers())
    assert graph.uncalled == ("blocks", "attention.out_proj", "heads")
    domain = domain_of(graph, grid_cluster(2))
    found = [each.name for each in modules_to_place(domain)]
    assert set(graph.uncalled).isdisjoint(found)
    assert {"first", "blocks.0", "blocks.0.0", "blocks.1", "heads.wide"} <= set(found)
    with pytest.raises(InvalidStrategy, match="'blocks' is never called") as refused:
        check_module(evenly("blocks", [0]), domain)
    assert "such as 'blocks.0.0'" in refused.value.remedy


def test_a_graph_in_which_all_are_called_keeps_its_text() -> None:
    graph = recorded(Outer())
    assert graph.uncalled == ()
    assert "uncalled" not in to_json(graph)
    other = recorded(Containers())
    assert from_json(ModelGraph, to_json(other)) == other


class Exits(nn.Module):
    """Leaves after as many blocks as its input says."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        for block in self.blocks[:depth]:
            x = torch.tanh(block(x))
        found: Tensor = self.head(x)
        return found


def exiting_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, int]
) -> None:
    optimizer.zero_grad()
    model(*batch).square().sum().backward()
    optimizer.step()


def recorded_exits(depths: list[int]) -> RecordedJob:
    options = {"find_unused_parameters": True}
    batches = [(torch.ones(2, 4), depth) for depth in depths]
    job = job_of(exiting_step, Exits(), ddp_options=options, batches=batches)
    return record_job(job, None, "cpu")


def path_of(operation: Operation) -> str:
    return operation.name.rpartition(".")[0]


def test_parts_have_the_frequency_of_the_batches_that_run_them() -> None:
    found = recorded_exits([1, 3, 2, 1])
    graph = found.graph
    frequency = {path_of(o): o.frequency for o in graph.operations}
    assert frequency == {"blocks.0": 1.0, "blocks.1": 0.5, "blocks.2": 0.25, "head": 1.0}
    assert [path_of(o) for o in graph.operations] == list(frequency)
    gradients = {v.name: v.frequency for v in graph.variables}
    assert gradients == {
        f"{module}.{kind}": share
        for module, share in (("blocks.0", 1), ("blocks.1", 0.5), ("blocks.2", 0.25), ("head", 1))
        for kind in ("weight", "bias")
    }
    order = [graph.variables[v].name.rpartition(".")[0] for v in graph.gradient_order]
    assert list(dict.fromkeys(order)) == ["head", "blocks.2", "blocks.1", "blocks.0"]
    backward = [path_of(graph.operations[o]) for o in graph.backward_order]
    assert backward == ["head", "blocks.2", "blocks.1", "blocks.0"]
    for variable, operation in enumerate(graph.gradient_after):
        assert graph.variables[variable].name.startswith(path_of(graph.operations[operation]))
    assert all(seconds > 0 for seconds in found.profile.forward_seconds)


def test_a_model_that_is_always_the_same_has_no_frequencies() -> None:
    graph = recorded_exits([2, 2, 2]).graph
    names = [path_of(o) for o in graph.operations]
    assert names == ["blocks.0", "blocks.1", "head"]
    assert {o.frequency for o in graph.operations} == {1.0}
    assert {v.frequency for v in graph.variables} == {1.0}


def test_modules_may_have_brackets_in_their_names() -> None:
    model = nn.Sequential(OrderedDict({"in (1)": nn.Linear(8, 8), "out (2)": nn.Linear(8, 3)}))
    found = record_job(job_of(step, model), None, "cpu")
    assert [path_of(each) for each in found.graph.operations] == ["in (1)", "out (2)"]
    assert all(seconds > 0 for seconds in found.profile.forward_seconds)


def test_orders_of_a_recorded_step() -> None:
    """A tied variable (0) completes with its first call; 4 is read without a call of its own."""
    calls = [
        Call(str(i), "linear", own, 0, 0.0) for i, own in enumerate([(0,), (1, 2), (3,), (0,)])
    ]
    tape = Tape(0.0, calls, ready={3: 1.0, 4: 2.0, 2: 3.0, 1: 4.0, 0: 5.0})
    assign_uncalled_variables([tape])
    assert calls[1].variables == (1, 2, 4)
    assert finish_order(tape) == [3, 2, 1, 0]


ROOMY = 1 << 33
ROWS = 512


def wide() -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def wide_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(ROWS, 256)).square().mean().backward()
    optimizer.step()


def least_bytes(with_state: bool) -> int:
    model, optimizer = wide()
    with Arena(ROOMY):
        swapper = swap_to_host(model, Offload(ROOMY, with_state), [optimizer])
        for _ in range(4):
            wide_step(model, optimizer)
    assert swapper.recorded is not None
    return least_budget_bytes(swapper.recorded.moments)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_plain_iteration_that_does_not_fit_swaps_as_much_as_needed(with_state: bool) -> None:
    least = least_bytes(with_state)
    memory = int(least * 1.02 / (1 - RESERVE))
    assert budget_within(memory) >= least
    if with_state:
        assert budget_within(memory) < least_bytes(False)
    model, optimizer = wide()
    values = [value.detach().clone() for value in model.parameters()]
    with Arena(memory) as arena:
        arena.count(model.parameters())
        recorded = record_job(job_of(wide_step, model, optimizer), None, "arena")
    assert ("optimizer state" in recorded.profile.note) is with_state
    assert "swapped activations" in recorded.profile.note
    assert recorded.optimizer.state_tensors == 2
    assert all(map(torch.equal, values, model.parameters()))
    assert not any(optimizer.state.values())


def recorded_batches(counts: Sequence[int]) -> tuple[RecordedJob, nn.Module]:
    """Of an iteration with each of these numbers of batches, again and again."""
    iterations = itertools.cycle(counts)

    def accumulate(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        for left in reversed(range(next(iterations))):
            with model.no_sync() if left else nullcontext():
                model(torch.ones(BATCH, 8)).sum().backward()
        optimizer.step()

    model = Outer()
    return record_job(job_of(accumulate, model), None, "cpu"), model


def test_of_several_batches_one_is_recorded() -> None:
    found, model = recorded_batches([3])
    assert found.accumulate == 3
    assert found.graph.id == recorded(Outer()).id
    assert "no_sync" not in model.__dict__


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 4, sparse=True)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.embedding(rows)
        return found


def test_rows_of_several_batches_count_once() -> None:
    """A gradient adds up the rows of all batches, and the graph has those of one."""

    def accumulate(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        for batch in range(3):
            with model.no_sync() if batch < 2 else nullcontext():
                model(torch.tensor([2 * batch, 2 * batch + 1])).sum().backward()
        optimizer.step()

    found = record_job(job_of(accumulate, Table()), None, "cpu")
    (variable,) = found.graph.variables
    assert (variable.sparse, variable.touched_rows, found.accumulate) == (True, 2, 3)
    domain = found.domain_on(grid_cluster(2))
    assert domain.variables.touched_rows.tolist() == [6]


def look_up(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
    optimizer.zero_grad()
    model(rows).sum().backward()
    optimizer.step()


def test_a_table_stays_sparse_where_a_batch_looks_up_padding_alone() -> None:
    model = Table()
    model.embedding.padding_idx = 0
    batches = [torch.tensor([3, 4]), torch.tensor([0, 0])]
    found = record_job(job_of(look_up, model, batches=batches), None, "cpu")
    (variable,) = found.graph.variables
    assert (variable.sparse, variable.touched_rows) == (True, 2)


def test_an_owner_may_update_rows_under_sparse_adam() -> None:
    model = Table()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    job = job_of(look_up, model, optimizer, batches=[torch.tensor([3, 4])])
    with torch.sparse.check_sparse_tensor_invariants(False):
        found = record_job(job, None, "cpu").optimizer
    assert (found.name, found.elementwise, found.state_tensors) == ("sparseadam", True, 2)


def test_iterations_have_as_many_batches() -> None:
    with pytest.raises(InvalidInput, match="2 batches in some iterations and 3 in others"):
        recorded_batches([2, 3])
